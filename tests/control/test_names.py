from datetime import UTC, datetime, timedelta

import pytest

from appliance.domain.access.principal import Scope
from appliance.domain.access.service import KeySpec, check_key_spec
from appliance.domain.tenants.decisions import check_name, check_slug
from appliance.errors import Invalid

NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.mark.parametrize("slug", ["a", "acme", "acme-2_x", "0", "a" * 63])
def test_a_slug_that_fits_labels_and_urls_is_accepted(slug):
    assert check_slug(slug) == slug


@pytest.mark.parametrize(
    "slug", ["", "Acme", "acme\n", " acme", "a" * 64, "-a", "_a", "a/b", "a.b", "ünïcode", "а", "a'; DROP TABLE tenant", "other"]
)
def test_any_other_slug_is_refused(slug):
    with pytest.raises(Invalid) as refused:
        check_slug(slug)
    assert (refused.value.code, refused.value.param) == ("invalid_slug", "slug")


def test_a_name_is_trimmed_and_may_be_in_any_script():
    assert check_name("  Größe 大 ") == "Größe 大"


@pytest.mark.parametrize("name", ["", "  ", "a\x00b", "a\nb", "x" * 201])
def test_a_name_that_would_spoil_a_log_or_a_page_is_refused(name):
    with pytest.raises(Invalid, match="printable"):
        check_name(name)


def test_a_key_specification_is_normalised():
    until = NOW + timedelta(days=1)
    spec = check_key_spec(" ci ", ["inference", "metrics", "inference"], ["m", "m"], ["fast"], until, NOW)
    assert spec == KeySpec("ci", (Scope.INFERENCE, Scope.METRICS), ("m",), ("fast",), until)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"name": ""}, "name", "printable"),
        ({"name": "a\nb"}, "name", "printable"),
        ({"name": "x" * 201}, "name", "printable"),
        ({"scopes": ["root"]}, "scopes", "the scopes are inference, gateway, metrics, admin:read, admin:write"),
        ({"scopes": []}, "scopes", "can do nothing"),
        ({"lanes": ["express"]}, "lanes", "the lanes are fast, slow, batch"),
        ({"models": [""]}, "models", "1 to 200"),
        ({"expires_at": NOW}, "expires_at", "has passed"),
        ({"expires_at": datetime(2999, 1, 1)}, "expires_at", "time zone"),  # noqa: DTZ001  naive on purpose
    ],
)
def test_a_wrong_key_specification_is_refused_by_name(fields, param, message):
    asked = {"name": "k", "scopes": ["inference"], "models": [], "lanes": [], "expires_at": None} | fields
    with pytest.raises(Invalid) as refused:
        check_key_spec(**asked, now=NOW)
    assert refused.value.param == param
    assert message in refused.value.message
