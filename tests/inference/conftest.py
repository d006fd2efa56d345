from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.text.model import TextModel, load_text_model
from engine.wire import ModelCard, Submit
from tests.inference.harness import House, start_house

EOS = 2
TEXT = "The capital of France is Paris. Naïve café 日本 😀 done."
"""What the fake engine answers whatever is asked."""


@pytest.fixture(scope="session")
def card(export: Path) -> ModelCard:
    return msgspec.json.decode((export / "model.json").read_bytes(), type=ModelCard)


@pytest.fixture(scope="session")
def model(export: Path) -> TextModel:
    return load_text_model(export)


def text_answer(model: TextModel, text: str = TEXT):
    """Answers every prompt with one text, then the end token."""
    ids = (*model.tokenizer.encode(text, add_bos=False), EOS)

    def answer(submit: Submit) -> tuple[int, ...]:
        return ids

    return answer


@pytest.fixture(scope="session")
def shared_house(export: Path, card: ModelCard, model: TextModel) -> Iterator[House]:
    with start_house(export, card, text_answer(model)) as house:
        yield house


@pytest.fixture
def house(shared_house: House, model: TextModel) -> House:
    """The shared server with the fake engine as it was at first."""
    shared_house.set_engine(answer=text_answer(model), step_s=0.0, max_rows=8, hold=False)
    return shared_house
