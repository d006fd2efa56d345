"""Tenants, their keys' administration, and what a first start puts into the database."""
