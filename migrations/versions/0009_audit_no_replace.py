"""Audit events can not be replaced on SQLite (INSERT OR REPLACE deletes without a trigger), nor truncated on PostgreSQL."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON audit_event "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_event_is_append_only()"
        )
    else:
        op.execute(
            "CREATE TRIGGER audit_event_no_replace BEFORE INSERT ON audit_event "
            "WHEN EXISTS (SELECT 1 FROM audit_event WHERE id = NEW.id) "
            "BEGIN SELECT RAISE(ABORT, 'audit events are append only'); END"
        )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_event_no_truncate ON audit_event")
    else:
        op.execute("DROP TRIGGER audit_event_no_replace")
