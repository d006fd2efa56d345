"""Whole processes of the control plane with a fake engine, on databases that are killed and locked under them."""

from pathlib import Path

import pytest

from tests.text.smollm2 import write_export


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_export(folder)
    return folder
