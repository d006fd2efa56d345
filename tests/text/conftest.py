from pathlib import Path

import pytest

from appliance.text.model import TextModel, load_text_model


@pytest.fixture(scope="session")
def smollm2(export: Path) -> TextModel:
    return load_text_model(export)
