"""Tenants of a running appliance."""

from typing import Any

import httpx

from tests.appliance import Appliance


def tenant_headers(appliance: Appliance, slug: str, trust_group: str = "", overrides: dict[str, Any] | None = None) -> dict[str, str]:
    """A new tenant with a key, made through the admin API."""
    with httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers) as admin:
        created = admin.post(
            "/api/v1/tenants",
            json={"slug": slug, "name": slug, "tier": "standard", "trust_group": trust_group, "overrides": overrides or {}},
        )
        assert created.status_code == 201, created.text
        key = admin.post(f"/api/v1/tenants/{slug}/keys", json={"name": "test", "scopes": ["inference"]})
        assert key.status_code == 201, key.text
        return {"Authorization": f"Bearer {key.json()['key']}"}
