"""The exported folder is all that the control plane sees of a model."""

import json
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer, processors

from engine.errors import ModelError
from engine.model.export import CARD_NAME, TOKENIZER_NAME, export_model
from engine.model.gguf_file import GgufFile
from engine.model.gguf_tokenizer import tokenizer_from_gguf
from engine.wire import DEFAULT_MODEL, ModelCard
from tests.model.write_gguf import write_gguf
from tests.reference_fixtures import smollm2_greedy, tokenizer_cases
from tests.tiny_models import write_family_model, write_servable_model
from tests.tiny_weights import tiny_config


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    export_model(DEFAULT_MODEL, folder, num_pages=7)
    return folder


@pytest.fixture(scope="module")
def tokenizer(exported: Path) -> Tokenizer:
    return Tokenizer.from_file(str(exported / TOKENIZER_NAME))


def test_the_rebuilt_tokenizer_gives_the_reference_ids(tokenizer: Tokenizer) -> None:
    cases = tokenizer_cases()
    assert len(cases) > 180
    for case in cases:
        assert tokenizer.encode(case.text, add_special_tokens=False).ids == case.token_ids, case.text


def test_decoding_gives_back_every_text(tokenizer: Tokenizer) -> None:
    for case in tokenizer_cases():
        assert tokenizer.decode(case.token_ids, skip_special_tokens=False) == case.text


def test_special_tokens_are_left_out_of_decoded_text_when_asked(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nHi"


def test_the_card_on_disk_is_the_card_returned(exported: Path) -> None:
    card = msgspec.json.decode((exported / CARD_NAME).read_bytes(), type=ModelCard)
    assert (card.model_id, card.architecture, card.vocab_size, card.max_model_len) == (DEFAULT_MODEL, "llama", 49_152, 8_192)
    assert (card.bos_token_id, card.eos_token_ids, card.add_bos) == (1, (2,), False)
    assert card.special_tokens["eos_token"] == "<|im_end|>"
    assert card.chat_template is not None and "add_generation_prompt" in card.chat_template
    assert (card.weight_bytes, card.kv_bytes_per_token, card.block_size, card.num_pages) == (269_100_288, 23_040, 16, 7)
    assert {path.name for path in exported.iterdir()} == {CARD_NAME, TOKENIZER_NAME}


def test_a_folder_exports_its_own_tokenizer_template_and_end_tokens(tmp_path: Path) -> None:
    folder = write_servable_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    card = export_model(str(folder), tmp_path / "out", served_model_name="tiny", max_model_len=100)
    assert (card.model_id, card.eos_token_ids, card.max_model_len) == ("tiny", (0, 2), 100)
    assert card.chat_template is not None and "im_start" in card.chat_template
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / TOKENIZER_NAME))
    case = smollm2_greedy()[0]
    assert tokenizer.encode(case.prompt).ids == list(case.prompt_ids)


def test_a_template_file_wins_over_the_setting_and_the_default_over_other_named_ones(tmp_path: Path) -> None:
    folder = write_servable_model(tmp_path / "model")
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "bos_token": {"content": "<|im_start|>"}}))
    card = export_model(str(folder), tmp_path / "out")
    assert (card.chat_template, card.special_tokens) == ("plain", {"bos_token": "<|im_start|>"})
    (folder / "chat_template.jinja").write_text("from file é", encoding="utf-8")
    assert export_model(str(folder), tmp_path / "out").chat_template == "from file é"


def test_a_tokenizer_that_begins_prompts_with_bos_is_noticed(tmp_path: Path) -> None:
    folder = write_servable_model(tmp_path / "model")
    path = str(folder / TOKENIZER_NAME)
    tokenizer = Tokenizer.from_file(path)
    assert not export_model(str(folder), tmp_path / "out").add_bos
    tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(path)
    assert export_model(str(folder), tmp_path / "out").add_bos


def test_dummy_weights_without_a_tokenizer_borrow_the_default_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("llama3", vocab_size=128_256)))
    card = export_model(str(tmp_path), tmp_path / "out", load_format="dummy")
    assert (card.vocab_size, (tmp_path / "out" / TOKENIZER_NAME).is_file()) == (128_256, True)


def test_a_folder_without_a_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing; download it"):
        export_model(str(write_family_model(tmp_path, "llama3")), tmp_path / "out")


def test_a_tokenizer_with_ids_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_servable_model(tmp_path / "model", vocab_size=49_000)
    with pytest.raises(ModelError, match="token ids up to 49151, the model's vocabulary ends at 48999"):
        export_model(str(folder), tmp_path / "out")
    assert not (tmp_path / "out" / CARD_NAME).exists()


def test_a_gguf_file_without_a_known_tokenizer_takes_the_one_beside_it(tmp_path: Path, exported: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny_config("llama3", vocab_size=49_152))
    with pytest.raises(ModelError, match=r"put the original model's tokenizer\.json beside the file"):
        export_model(str(path), tmp_path / "out")
    (tmp_path / TOKENIZER_NAME).write_bytes((exported / TOKENIZER_NAME).read_bytes())
    assert export_model(str(path), tmp_path / "out").vocab_size == 49_152


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3"]),
        ("qwen2", ["1", "2", "3"]),
        ("llama-bpe", ["123"]),
        ("gpt-2", ["123"]),
    ],
)
def test_digits_stay_together_as_the_pre_tokenizer_named_in_the_file_says(pre: str, pieces: list[str]) -> None:
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["1", "2", "3", "12", "123"],
        "tokenizer.ggml.merges": ["1 2", "12 3"],
    }
    assert tokenizer_from_gguf(GgufFile(Path("model.gguf"), fields, {})).encode("123").tokens == pieces
