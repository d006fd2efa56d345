"""`fairlane model pull NAME`: fetches a model's files from a Hugging Face hub. The one place that downloads: serving never does.

A program of its own (`python -m engine.model.pull`), because the hub's library has no business in an engine.
"""

import json
import sys
from pathlib import Path

import click
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError

from engine.errors import ModelError
from engine.model.hf_config import config_from_folder

DONE_FILE = ".pulled.json"
"""In the model's folder once all files are there: what was asked for."""
SETTINGS_FILES = ("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "chat_template*")
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")


def pull_model(name: str, out: Path, revision: str = "main", file: str = "") -> Path:
    """Fetch NAME (`owner/model`) to the folder `out`/NAME, or one GGUF `file` of it; its path. What is there is not asked for again.

    Settings come first, so a model of an unsupported kind is refused before its weights are fetched.

    Raises:
        ModelError: it can not be fetched, or not be run; the message says what to do.
    """
    folder = out / name
    wanted = {"name": name, "revision": revision, "file": file}
    done = folder / DONE_FILE
    if done.is_file() and json.loads(done.read_text()) == wanted:
        return folder / file
    if file:
        _fetch(name, revision, folder, (file,))
        if not (folder / file).is_file():
            raise ModelError(f"{name} has no file {file!r} at revision {revision!r}: look at its list of files")
    else:
        _fetch(name, revision, folder, SETTINGS_FILES)
        config_from_folder(folder, name)
        _fetch(name, revision, folder, WEIGHT_FILES)
    done.write_text(json.dumps(wanted))
    return folder / file


def _fetch(name: str, revision: str, folder: Path, patterns: tuple[str, ...]) -> None:
    try:
        snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=list(patterns))
    except OfflineModeIsEnabled as error:
        raise ModelError(f"{name} can not be pulled: HF_HUB_OFFLINE is set; set it to 0 for this command") from error
    except (GatedRepoError, RepositoryNotFoundError) as error:
        raise ModelError(
            f"{name} is not there, or not for everybody: look at its name, accept its terms on the hub, and give a token that may"
            " read it in HF_TOKEN, or in the file HF_TOKEN_PATH names"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{name} can not be pulled to {folder}: {reason}; what came so far is kept, run it again") from error


@click.command()
@click.argument("name")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("models"), show_default=True, help="Folder of models."
)
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
@click.option("--file", default="", help="Fetch this one GGUF file instead of the safetensors.")
def main(name: str, out: Path, revision: str, file: str) -> None:
    """Fetch a model from the hub; `fairlane serve FOLDER` serves it."""
    click.echo(pull_model(name, out, revision, file))


if __name__ == "__main__":
    try:
        main()
    except ModelError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
