"""SLA tiers: what a tier promises and limits, and the effective policy of a tenant."""
