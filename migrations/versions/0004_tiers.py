"""An objective by lane, and tiers that can be removed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

OBJECTIVE_RATIO = "objective > 0 AND objective < 1"


def remake_on_sqlite(column_type, *more_checks) -> None:
    """SQLite changes a column by making its table anew. Whether its CHECKs are read from there depends on the library's version,
    so they are left out and named again."""
    table = sa.Table("sla_tier", sa.MetaData(), autoload_with=op.get_bind())
    table.constraints -= {each for each in table.constraints if isinstance(each, sa.CheckConstraint)}
    checks = (
        sa.CheckConstraint("weight > 0", name=op.f("ck_sla_tier_weight_positive")),
        sa.CheckConstraint("kv_reserve >= 0 AND kv_reserve <= kv_cap AND kv_cap <= 1", name=op.f("ck_sla_tier_kv_ratios")),
    )
    with op.batch_alter_table("sla_tier", copy_from=table, table_args=(*checks, *more_checks)) as batch:
        batch.alter_column("objective", type_=column_type, existing_nullable=False)


def upgrade() -> None:
    op.add_column("sla_tier", sa.Column("deleted_at", sa.DateTime(timezone=True)))
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_sla_tier_objective_ratio"), "sla_tier", type_="check")
        op.alter_column("sla_tier", "objective", type_=sa.JSON(), postgresql_using="to_json(objective)")
    else:
        remake_on_sqlite(sa.JSON())


def downgrade() -> None:
    """Of objectives by lane the strictest stays. A removed tier comes back: older versions can not hide it."""
    tier = sa.table("sla_tier", sa.column("id", sa.Integer()), sa.column("objective", sa.JSON()))
    connection = op.get_bind()
    for row in connection.execute(sa.select(tier)).all():
        if isinstance(row.objective, dict):
            strictest = max(row.objective.values(), default=0.99)
            connection.execute(sa.update(tier).where(tier.c.id == row.id).values(objective=strictest))
    op.drop_column("sla_tier", "deleted_at")
    if connection.dialect.name == "postgresql":
        op.alter_column("sla_tier", "objective", type_=sa.Float(), postgresql_using="CAST(CAST(objective AS text) AS double precision)")
        op.create_check_constraint(op.f("ck_sla_tier_objective_ratio"), "sla_tier", OBJECTIVE_RATIO)
    else:
        remake_on_sqlite(sa.Float(), sa.CheckConstraint(OBJECTIVE_RATIO, name=op.f("ck_sla_tier_objective_ratio")))
