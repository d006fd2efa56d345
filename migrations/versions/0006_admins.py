"""Administrators, their sessions and tokens; the audit names who by id too."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admin_user",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password_hash", sa.String(255)),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'owner')", name=op.f("ck_admin_user_role_known")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admin_user")),
        sa.UniqueConstraint("name", name=op.f("uq_admin_user_name")),
    )
    op.create_table(
        "admin_session",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("admin_id", sa.String(40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["admin_id"], ["admin_user.id"], name=op.f("fk_admin_session_admin_id_admin_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_admin_session")),
    )
    op.create_index(op.f("ix_admin_session_admin_id"), "admin_session", ["admin_id"])
    op.create_table(
        "admin_token",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("admin_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'owner')", name=op.f("ck_admin_token_role_known")),
        sa.ForeignKeyConstraint(["admin_id"], ["admin_user.id"], name=op.f("fk_admin_token_admin_id_admin_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admin_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_admin_token_digest")),
    )
    op.create_index(op.f("ix_admin_token_admin_id"), "admin_token", ["admin_id"])
    op.add_column("audit_event", sa.Column("actor_id", sa.String(100), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("audit_event", "actor_id")
    op.drop_table("admin_token")
    op.drop_table("admin_session")
    op.drop_table("admin_user")
