"""Tenants, SLA tiers, API keys, and the installation's state.

Revision 0001, the first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    state = op.create_table(
        "installation_state",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation_state")),
    )
    op.bulk_insert(state, [{"name": "access_version", "number": 0, "text": ""}])
    op.create_table(
        "sla_tier",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("lanes", sa.JSON(), nullable=False),
        sa.Column("default_lane", sa.String(16), nullable=False),
        sa.Column("ttft_ms", sa.JSON(), nullable=False),
        sa.Column("tpot_ms", sa.JSON(), nullable=False),
        sa.Column("objective", sa.Float(), nullable=False),
        sa.Column("committed_tpm", sa.BigInteger()),
        sa.Column("tpm", sa.BigInteger()),
        sa.Column("rpm", sa.BigInteger()),
        sa.Column("max_concurrency", sa.BigInteger()),
        sa.Column("max_queued", sa.BigInteger()),
        sa.Column("queue_ttl_ms", sa.BigInteger()),
        sa.Column("max_context", sa.BigInteger()),
        sa.Column("output_caps", sa.JSON(), nullable=False),
        sa.Column("kv_reserve", sa.Float(), nullable=False),
        sa.Column("kv_cap", sa.Float(), nullable=False),
        sa.Column("tokens_per_day", sa.BigInteger()),
        sa.Column("tokens_per_month", sa.BigInteger()),
        sa.Column("shadow_mode", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("weight > 0", name=op.f("ck_sla_tier_weight_positive")),
        sa.CheckConstraint("objective > 0 AND objective < 1", name=op.f("ck_sla_tier_objective_ratio")),
        sa.CheckConstraint("kv_reserve >= 0 AND kv_reserve <= kv_cap AND kv_cap <= 1", name=op.f("ck_sla_tier_kv_ratios")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sla_tier")),
        sa.UniqueConstraint("name", name=op.f("uq_sla_tier_name")),
    )
    op.create_table(
        "tenant",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("slug", sa.String(63), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("tier_id", sa.Integer(), nullable=False),
        sa.Column("overrides", sa.JSON(), nullable=False),
        sa.Column("trust_group", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('active', 'suspended', 'deleted')", name=op.f("ck_tenant_status_known")),
        sa.ForeignKeyConstraint(["tier_id"], ["sla_tier.id"], name=op.f("fk_tenant_tier_id_sla_tier"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant")),
        sa.UniqueConstraint("slug", name=op.f("uq_tenant_slug")),
    )
    op.create_index(op.f("ix_tenant_tier_id"), "tenant", ["tier_id"])
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("lanes", sa.JSON(), nullable=False),
        sa.Column("tpm", sa.BigInteger()),
        sa.Column("rpm", sa.BigInteger()),
        sa.Column("tokens_per_day", sa.BigInteger()),
        sa.Column("tokens_per_month", sa.BigInteger()),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("grace_until", sa.DateTime(timezone=True)),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_api_key_tenant_id_tenant"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_key_digest")),
    )
    op.create_index(op.f("ix_api_key_tenant_id"), "api_key", ["tenant_id"])


def downgrade() -> None:
    op.drop_table("api_key")
    op.drop_table("tenant")
    op.drop_table("sla_tier")
    op.drop_table("installation_state")
