"""What a tier's output caps do to an explicit max_tokens. Caps that were set before were always held, and stay so."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TIER = sa.table("sla_tier", sa.column("id"), sa.column("output_caps", sa.JSON()), sa.column("output_cap_mode"))
TENANT = sa.table("tenant", sa.column("id"), sa.column("overrides", sa.JSON()))


def upgrade() -> None:
    op.add_column("sla_tier", sa.Column("output_cap_mode", sa.String(8), nullable=False, server_default="fill"))
    connection = op.get_bind()
    for row in connection.execute(sa.select(TIER)).all():
        if row.output_caps is not None:
            connection.execute(TIER.update().where(TIER.c.id == row.id).values(output_cap_mode="clamp"))
    _change_overrides(lambda overrides: {**overrides, "output_cap_mode": "clamp"} if overrides.get("output_caps") else overrides)


def downgrade() -> None:
    _change_overrides(lambda overrides: {name: value for name, value in overrides.items() if name != "output_cap_mode"})
    op.drop_column("sla_tier", "output_cap_mode")


def _change_overrides(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    connection = op.get_bind()
    for row in connection.execute(sa.select(TENANT)).all():
        changed = change(row.overrides)
        if changed != row.overrides:
            connection.execute(TENANT.update().where(TENANT.c.id == row.id).values(overrides=changed))
