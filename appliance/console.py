"""What `fairlane serve` shows on the terminal: progress while it starts, then where it is and how to use it."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import msgspec
from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from appliance.terminal import Terminal
from engine.wire import Progress as EngineProgress
from engine.wire import Ready

PLAIN_SHARES = 4
"""Off a terminal a phase is shown at most so often, and at its end."""
SHOWN_WHOLE = frozenset({"compile"})
"""Phases whose every step is shown: they are long."""


class Console:
    """Bars on a terminal, lines elsewhere."""

    def __init__(self, out: Terminal) -> None:
        self._out = out
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._shown: tuple[str, int] = ("", -1)
        self._steps: dict[str, int] = {}
        """The most steps each phase has named: its end is told as 1 of 1."""
        self.is_terminal = out.isatty()

    def progress(self, step: EngineProgress) -> None:
        """A step of the engine's start."""
        total = self._steps[step.phase] = max(step.total, self._steps.get(step.phase, 0))
        if step.done == step.total:
            step = msgspec.structs.replace(step, done=total, total=total)
        if self.is_terminal:
            self._show_bar(step)
        else:
            self._show_line(step)

    def end_progress(self) -> None:
        """Leave the bars as they stand."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()
        self._steps.clear()

    def say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    def _show_bar(self, step: EngineProgress) -> None:
        if self._bars is None:
            columns = (
                TextColumn("{task.description:>9}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[detail]}"),
            )
            # log lines go above the bars, where both are on a terminal
            console = RichConsole(file=cast(TextIO, self._out))
            self._bars = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=sys.stderr.isatty())
            self._bars.start()
        if step.phase not in self._tasks:
            self._tasks[step.phase] = self._bars.add_task(step.phase, total=step.total, detail="")
        self._bars.update(self._tasks[step.phase], completed=step.done, total=step.total, detail=step.detail)

    def _show_line(self, step: EngineProgress) -> None:
        share = step.done if step.phase in SHOWN_WHOLE else step.done * PLAIN_SHARES // max(1, step.total)
        if step.done and (step.phase, share) != self._shown:
            self._shown = (step.phase, share)
            self.say(f"{step.phase} {step.done}/{step.total} {step.detail}".rstrip())


@dataclass(frozen=True, slots=True)
class FirstSecrets:
    """What a first start made or was given. A path is None where the settings gave the secret."""

    api_key: str | None
    """None: it was revoked, or is not known here."""
    api_key_path: Path | None
    admin_token_path: Path | None
    setup_token: str | None
    """None where there is an owner."""
    setup_token_path: Path


def banner(url: str, ready: Ready, startup_s: float, secrets: FirstSecrets, *, is_private: bool) -> str:
    """URL, model, a request to paste, where the secrets are, and by what it runs.

    `is_private`: somebody reads this on a terminal. Elsewhere it ends up in log files, and no secret is in it: only where each one lies.
    """
    model = ready.card.model_id
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0})
    lines = [
        "",
        f"Fairlane serves {model} at {url}   (ready after {startup_s:.1f} s)",
        f"Administration: {url}/ui/   API description: {url}/schema   metrics: {url}/metrics",
        "",
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f'  -H "Authorization: Bearer {_key_to_paste(secrets, is_private)}" \\',
        f"  -d '{body}'",
        "",
        *_where_secrets_are(secrets),
    ]
    if secrets.setup_token:
        token = secrets.setup_token if is_private else f"$(cat {_quoted(secrets.setup_token_path)})"
        lines += [
            f"No owner yet. Make the first one: {url}/ui/setup?token={token}",
            f"  The token is good until there is an owner, and then for nothing; it lies in {secrets.setup_token_path}",
        ]
    lines.append(f"Runs on: {ready.device}, {ready.attention_backend} ({ready.backend_reason})")
    lines.append("Ctrl-C stops it: running requests get time to finish; a second Ctrl-C ends them at once")
    return "\n".join([*lines, ""])


def _key_to_paste(secrets: FirstSecrets, is_private: bool) -> str:
    """The key that was made here; one that the settings gave is somebody's own and is never shown."""
    if secrets.api_key is None or secrets.api_key_path is None:
        return "YOUR_KEY"
    return secrets.api_key if is_private else f"$(cat {_quoted(secrets.api_key_path)})"


def _where_secrets_are(secrets: FirstSecrets) -> list[str]:
    if secrets.api_key is None:
        key = "The first key is not known here; make one with: fairlane key create --help"
    else:
        key = f"API key stored in: {secrets.api_key_path}" if secrets.api_key_path else "API key: the one in FAIRLANE_BOOTSTRAP_API_KEY"
    path = secrets.admin_token_path
    return [key, f"Admin token stored in: {path}" if path else "Admin token: the one in FAIRLANE_BOOTSTRAP_ADMIN_TOKEN"]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
