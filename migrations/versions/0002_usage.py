"""Usage by minute and hour, and who wrote it last."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("usage_minute", "usage_hour")


def upgrade() -> None:
    for name in TABLES:
        op.create_table(
            name,
            sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("tenant", sa.String(63), nullable=False),
            sa.Column("key_id", sa.String(40), nullable=False),
            sa.Column("model", sa.String(255), nullable=False),
            sa.Column("lane", sa.String(16), nullable=False),
            sa.Column("outcome", sa.String(16), nullable=False),
            sa.Column("requests", sa.BigInteger(), nullable=False),
            sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
            sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
            sa.Column("generated_tokens", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("began_at", "tenant", "key_id", "model", "lane", "outcome", name=op.f(f"pk_{name}")),
        )
    op.create_table(
        "usage_writer",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("last_batch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_writer")),
    )


def downgrade() -> None:
    op.drop_table("usage_writer")
    for name in TABLES:
        op.drop_table(name)
