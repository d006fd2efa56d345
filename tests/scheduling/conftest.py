"""The scheduler that properties are checked on; `test_planted_faults.py` gives them faulty ones."""

import pytest

from engine.scheduling.scheduler import Scheduler


@pytest.fixture(scope="session")
def scheduler_type() -> type[Scheduler]:
    return Scheduler
