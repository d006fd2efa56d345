"""How `make test` shares the suite among processes: the tests of a folder stay together, in order, as they share servers and fixtures."""

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByFolder(LoadScopeScheduling):
    """Gives each process whole folders of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0].rpartition("/")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFolder:
    """Called by pytest-xdist in the process that hands out the tests (its documentation, "distribution")."""
    return ByFolder(config, log)
