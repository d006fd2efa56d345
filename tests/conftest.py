"""What tests of several folders share."""

from pathlib import Path

import pytest

from tests.text.smollm2 import write_export


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real SmolLM2's tokenizer, card and template; nobody writes to it."""
    folder = tmp_path_factory.mktemp("export")
    write_export(folder)
    return folder
