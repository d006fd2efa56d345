"""What each serving process was measured to do: contracts are compared with all of them together. No process runs meanwhile."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM serving_process")
    with op.batch_alter_table("serving_process") as table:
        table.add_column(sa.Column("capacity_tpm", sa.BigInteger(), nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("serving_process") as table:
        table.drop_column("capacity_tpm")
