from pathlib import Path

import pytest

from appliance.text.model import TextModel, load_text_model
from tests.text.smollm2 import write_export


@pytest.fixture(scope="session")
def smollm2_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    write_export(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_export: Path) -> TextModel:
    return load_text_model(smollm2_export)
