"""Configuration as code: tiers and tenants as one document, compared with the database and brought to it."""
