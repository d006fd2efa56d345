"""Which keys somebody may make or change."""

from datetime import UTC, datetime

import pytest

from appliance.domain.access.grants import check_key_grant
from appliance.domain.access.principal import Scope
from appliance.domain.access.snapshot import Admin
from appliance.errors import Forbidden

BOTH = frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE})
SHORT = Admin("admin:op", BOTH, "a/t", "a", expires_at_s=1_000.0)


def test_a_token_makes_no_key_of_administration_that_outlasts_it() -> None:
    check_key_grant(SHORT, None, [Scope.INFERENCE], None)
    check_key_grant(SHORT, None, BOTH, datetime.fromtimestamp(1_000, UTC))
    for expires_at in (None, datetime.fromtimestamp(1_001, UTC)):
        with pytest.raises(Forbidden, match="outlasts it"):
            check_key_grant(SHORT, None, BOTH, expires_at)


def test_a_token_that_ends_with_the_calendar_refuses_in_words() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    forever = Admin("admin:op", BOTH, "a/t", "a", expires_at_s=last.timestamp())
    check_key_grant(forever, None, BOTH, last)
    with pytest.raises(Forbidden, match="set expires_at to 9999-12-31T23:59:59"):
        check_key_grant(forever, None, BOTH, None)


def test_nobody_gives_a_scope_of_administration_that_it_lacks() -> None:
    reader = Admin("admin:viewer", frozenset({Scope.ADMIN_READ}))
    check_key_grant(reader, None, [Scope.ADMIN_READ], None)
    with pytest.raises(Forbidden, match="admin:write"):
        check_key_grant(reader, None, BOTH, None)
