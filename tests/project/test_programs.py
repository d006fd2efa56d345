"""What people start with `python -m`: each says with --help what it does, and does nothing else."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("appliance", "benchmarks", "dashboards", "engine", "tools", "tests/ui")
ELSEWHERE = {"benchmarks.reference.make_reference": "torch", "tools.check_k8s": "kubernetes_validate"}
"""Programs with an environment of their own, and what this one lacks for them."""

PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
)

ASK_ALL = """
import contextlib, io, json, os, runpy, sys

root, *names = sys.argv[1:]
changed = []

def note(event, args):
    writes = event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event == "subprocess.Popen" or writes or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        path = os.path.abspath(args[0]) if isinstance(args[0], str) else str(args[0])
        if event == "subprocess.Popen" or path.startswith((root, os.getcwd())):
            changed.append(f"{event} {path}")

sys.addaudithook(note)
answers = {}
for name in names:
    changed.clear()
    sys.argv = [name, "--help"]
    out, status = io.StringIO(), None
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = repr(error)
    answers[name] = (status, out.getvalue(), list(changed))
print(json.dumps(answers))
"""
"""One process asks all of them: what they import is loaded once. An audit hook sees what each one would change."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, str, list[str]]]:
    here = [name for name in PROGRAMS if name not in ELSEWHERE]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", ASK_ALL, str(ROOT) + os.sep, *here]
    asked = subprocess.run(command, cwd=tmp_path_factory.mktemp("cwd"), env=env, capture_output=True, text=True, check=True)
    return json.loads(asked.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_answers_help_with_status_0_and_does_nothing_else(name: str, answers):
    if lacks := ELSEWHERE.get(name):
        assert importlib.util.find_spec(lacks) is None, f"{name} can be asked here, too"
        return
    status, shown, changed = answers[name]
    assert (status, changed) == (0, [])
    assert shown.lower().startswith("usage: ")
