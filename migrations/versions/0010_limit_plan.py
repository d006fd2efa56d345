"""Limits are divided between processes by demand: what each is asked for, and the plan they agreed on. No process runs meanwhile."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM serving_process")
    with op.batch_alter_table("serving_process") as table:
        table.drop_column("knows")
        table.add_column(sa.Column("plan", sa.BigInteger(), nullable=False))
        table.add_column(sa.Column("wants", sa.JSON(), nullable=False))
    op.create_table(
        "limit_plan",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("bounds", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limit_plan")),
    )


def downgrade() -> None:
    op.drop_table("limit_plan")
    op.execute("DELETE FROM serving_process")
    with op.batch_alter_table("serving_process") as table:
        table.drop_column("wants")
        table.drop_column("plan")
        table.add_column(sa.Column("knows", sa.Integer(), nullable=False))
