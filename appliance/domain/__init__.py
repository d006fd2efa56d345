"""The domains, in request order: inference -> admission -> lanes -> slas -> tenants -> access (imports go that way only)."""
