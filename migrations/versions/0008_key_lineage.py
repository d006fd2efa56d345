"""Which key each one goes back to through rotations: their own limits are counted together. Those rotated before stay apart."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("lineage_id", sa.String(40), nullable=True))


def downgrade() -> None:
    op.drop_column("api_key", "lineage_id")
