"""What the terminal shows."""

import contextlib
import io
import os
from dataclasses import replace
from pathlib import Path

from appliance.console import Console, FirstSecrets, banner
from appliance.runtime import PHASE_START_PERCENT, percent_of
from appliance.terminal import Terminal
from engine.wire import ModelCard, Progress, Ready

CARD = ModelCard(
    model_id="m",
    architecture="llama",
    vocab_size=10,
    max_model_len=64,
    bos_token_id=None,
    eos_token_ids=(2,),
    add_bos=False,
    chat_template=None,
    special_tokens={},
    dtype="bfloat16",
    quantization="none",
    weight_bytes=1,
    kv_bytes_per_token=1,
    block_size=16,
    num_pages=4,
)
READY = Ready(CARD, "cpu", "xla", {}, "no native kernels: no C++ compiler")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def startup() -> list[Progress]:
    steps = [Progress("load", 0, 1), *(Progress("load", n, 30, f"layer {n} of 30") for n in range(1, 31)), Progress("load", 1, 1)]
    return [*steps, Progress("compile", 0, 1), *(Progress("compile", n, 5, f"d{n}") for n in range(1, 6)), Progress("compile", 1, 1)]


def test_off_a_terminal_compiles_show_one_by_one_and_other_phases_in_quarters() -> None:
    out = io.StringIO()
    console = Console(Terminal(lambda: out))
    for step in startup():
        console.progress(step)
    console.end_progress()
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("compile")] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert 4 <= sum(line.startswith("load") for line in lines) <= 6


def test_on_a_terminal_there_are_bars_with_n_of_m() -> None:
    out = FakeTerminal()
    console = Console(Terminal(lambda: out))
    for step in startup():
        console.progress(step)
    console.end_progress()
    assert "compile" in out.getvalue() and "5/5" in out.getvalue() and "30/30" in out.getvalue()


SECRETS = FirstSecrets("fl-key", Path("/my data/bootstrap-key"), Path("/my data/token"), "fl-setup-1", Path("/my data/setup-token"))
NO_SECRETS = FirstSecrets(None, None, None, None, Path("/my data/setup-token"))


def test_the_banner_holds_a_request_to_paste_and_where_the_secrets_are() -> None:
    text = banner("http://127.0.0.1:8000", READY, 1.25, SECRETS, is_private=True)
    for part in (
        "m at http://127.0.0.1:8000",
        "1.2 s",
        "Authorization: Bearer fl-key",
        "/my data/bootstrap-key",
        "/my data/token",
        '"model": "m"',
        "cpu, xla (no native kernels: no C++ compiler)",
        "http://127.0.0.1:8000/ui/setup?token=fl-setup-1",
        "good until there is an owner",
    ):
        assert part in text
    without = banner("http://h", READY, 1.0, NO_SECRETS, is_private=True)
    assert "setup" not in without
    assert "YOUR_KEY" in without and "fairlane key create" in without and "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN" in without


def test_a_banner_that_goes_to_a_file_holds_no_secret_and_still_a_request_to_paste() -> None:
    text = banner("http://h", READY, 1.0, SECRETS, is_private=False)
    assert "fl-key" not in text and "fl-setup-1" not in text
    assert "Bearer $(cat '/my data/bootstrap-key')" in text and "token=$(cat '/my data/setup-token')" in text
    for is_private in (True, False):
        given = banner("http://h", READY, 1.0, replace(SECRETS, api_key_path=None), is_private=is_private)
        assert "fl-key" not in given and "Bearer YOUR_KEY" in given and "FAIRLANE_BOOTSTRAP_API_KEY" in given


def test_a_stream_that_went_away_is_no_error_and_is_no_terminal() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as pipe:
        terminal = Terminal(lambda: pipe)
        assert terminal.write("nobody reads this\n") == 18
        terminal.flush()
        assert not terminal.isatty()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    Terminal(lambda: pipe).write("closed")


def test_the_percentage_of_a_start_never_falls() -> None:
    phases = sorted(PHASE_START_PERCENT, key=lambda phase: PHASE_START_PERCENT[phase])
    percents = [percent_of(Progress(phase, done, 4)) for phase in phases for done in range(5)]
    assert percents == sorted(percents) and percents[0] == 0 and percents[-1] == 99
    assert percent_of(Progress("something new", 0, 0)) == 0
