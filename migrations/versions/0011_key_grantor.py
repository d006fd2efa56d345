"""Who gave a key its scopes of administration, for keys there are as the audit tells: they end with who gave them."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("granted_by", sa.String(100), nullable=True))
    op.execute(
        """
        UPDATE api_key SET granted_by = (
            SELECT NULLIF(actor_id, '') FROM audit_event
            WHERE action IN ('key.create', 'key.update') AND target LIKE 'tenant:%/key:' || api_key.id
                AND CAST("after" AS TEXT) LIKE '%"scopes":%'
            ORDER BY audit_event.id DESC LIMIT 1
        ) WHERE CAST(scopes AS TEXT) LIKE '%"admin:%'
        """
    )


def downgrade() -> None:
    op.drop_column("api_key", "granted_by")
