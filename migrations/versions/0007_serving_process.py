"""Which processes serve from this database, so that each takes its part of the limits."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "serving_process",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("joined", sa.Integer(), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.Column("knows", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_serving_process")),
    )


def downgrade() -> None:
    op.drop_table("serving_process")
