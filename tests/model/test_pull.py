"""`fairlane model pull` with the hub's own library, against a server that answers as a hub does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model.source import open_source
from tests.hub import TOKEN, Hub, serving_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serving_hub(tmp_path / "source") as found:
        yield found


def pull(
    hub: Hub, out: Path, *arguments: str, program: tuple[str, ...] = ("engine.model.pull",), **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command with a hub of its own and no token but the one given."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environ |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(out / "home"), **variables}
    command = [sys.executable, "-m", *program, *arguments, "--out", str(out)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_what_was_pulled_is_a_model_that_opens_and_is_not_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "owner/small", program=("appliance.cli.main", "model", "pull"))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder == tmp_path / "owner" / "small" and open_source(str(folder)).config.architecture
    assert "model.safetensors" in hub.fetched and "README.md" not in hub.fetched and "a.gguf" not in hub.fetched
    number = len(hub.fetched)
    again = pull(hub, tmp_path, "owner/small", HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout) == (0, done.stdout) and len(hub.fetched) == number


def test_one_gguf_file_is_fetched_where_it_is_named(hub: Hub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "owner/small", "--file", "a.gguf")
    assert done.stdout.strip() == str(tmp_path / "owner" / "small" / "a.gguf") and hub.fetched == ["a.gguf"]
    missing = pull(hub, tmp_path, "owner/small", "--file", "b.gguf")
    assert missing.returncode == 1 and "has no file 'b.gguf'" in missing.stderr


def test_a_token_opens_what_is_not_for_everybody_and_its_lack_is_told(hub: Hub, tmp_path: Path) -> None:
    refused = pull(hub, tmp_path, "owner/gated")
    assert refused.returncode == 1 and "HF_TOKEN" in refused.stderr and "Traceback" not in refused.stderr
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert pull(hub, tmp_path, "owner/gated", HF_TOKEN_PATH=str(tmp_path / "token")).returncode == 0


def test_an_unsupported_model_is_refused_before_its_weights_are_fetched(hub: Hub, tmp_path: Path) -> None:
    refused = pull(hub, tmp_path, "owner/strange")
    assert refused.returncode == 1 and "SomethingElse" in refused.stderr
    assert "model.safetensors" not in hub.fetched


@pytest.mark.parametrize(
    ("variable", "value", "said"), [("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE"), ("HF_ENDPOINT", "http://127.0.0.1:1", "run it again")]
)
def test_a_hub_that_can_not_be_asked_is_told(hub: Hub, tmp_path: Path, variable: str, value: str, said: str) -> None:
    refused = pull(hub, tmp_path, "owner/small", **{variable: value})
    assert refused.returncode == 1 and said in refused.stderr and "Traceback" not in refused.stderr
