"""The project's own checks find what they are for."""

import ast
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.check_locks import form_findings, pins, requirement_findings
from tools.check_tree import findings

ROOT = Path(__file__).resolve().parent.parent.parent
PINNED = "jax==0.12.0 ; python_version >= '3.12' \\\n    --hash=sha256:00\n"


@pytest.mark.parametrize("line", ["cd /wo" + "rk/main", "see /ro" + "ot/x", "https://py" + "pi.org/simple", "<" * 7 + " HEAD", "x = 1 "])
def test_a_tracked_file_with_a_machine_path_registry_or_conflict_is_found(line: str):
    assert len(list(findings(Path("a.py"), line + "\n"))) == 1


def test_a_file_of_others_is_kept_as_it_is():
    assert list(findings(Path("appliance/ui/static/vendor/x.js"), "x = 1 ")) == []


@pytest.mark.parametrize("line", ["artwork/main", "./wo" + "rk/x", "https:" + "//host" + ".example/rooted", "f'{base}/ro" + "ot/x'"])
def test_ordinary_lines_are_not_found(line: str):
    assert list(findings(Path("a.py"), line + "\n")) == []


def test_a_pin_without_a_hash_and_an_address_are_found():
    assert form_findings("x", PINNED) == []
    assert form_findings("x", "jax==0.12.0\n") == ["x: no hash: jax==0.12.0"]
    assert len(form_findings("x", "--index" + "-url https:" + "//host" + ".example\n" + PINNED)) == 1


def test_a_lock_behind_pyproject_is_found():
    assert requirement_findings("x", pins(PINNED), [Requirement("JAX>=0.12")]) == []
    assert "the lock has 0.12.0" in requirement_findings("x", pins(PINNED), [Requirement("jax>=0.13")])[0]
    assert "not in the lock" in requirement_findings("x", pins(PINNED), [Requirement("numpy")])[0]


@pytest.mark.parametrize("root", ["benchmarks", "dashboards", "engine", "tests/ui", "tools"])
def test_a_program_is_named_in_its_usage_as_it_is_started(root: str):
    """Python before 3.14 calls it `__main__.py`, which is none that anybody could start."""
    for path in (ROOT / root).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            if ast.unparse(call.func).endswith("ArgumentParser"):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert given.get("prog") == repr(f"python -m {name}"), path


def _find_python(path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The search with nothing but `path` to find programs in."""
    command = ["/bin/bash", str(ROOT / "tools" / "find_python.sh"), *arguments]
    return subprocess.run(command, env={"PATH": str(path), "HOME": str(path)} | env, capture_output=True, text=True, check=False)


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _python(path: Path, version: tuple[int, int], answer: str) -> None:
    """A stand-in for an interpreter of that version: the search runs programs on it and believes what they exit with."""
    lines = [
        "#!/bin/bash",
        f'[ "$1" = - ] || {{ echo {answer}; exit 0; }}',
        f'case "$2" in "") exit {int(version < (3, 12))};; {version[1]}) exit 0;; *) exit 1;; esac',
    ]
    _program(path, "\n".join(lines) + "\n")


def test_a_shim_that_exists_and_fails_is_passed_over(tmp_path: Path):
    _program(tmp_path / "python3.13", "#!/bin/bash\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    _python(tmp_path / "python3", (3, 11), "old")
    _python(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3", (3, 13), "from-pyenv")
    found = _find_python(tmp_path)
    assert (found.returncode, found.stdout.strip()) == (0, "from-pyenv")


def test_the_preferred_version_is_taken_first(tmp_path: Path):
    _python(tmp_path / "python3.12", (3, 12), "twelve")
    _python(tmp_path / "python3.13", (3, 13), "thirteen")
    assert _find_python(tmp_path).stdout.strip() == "thirteen"
    assert _find_python(tmp_path, "12", "13").stdout.strip() == "twelve"


def test_no_python_says_what_to_do(tmp_path: Path):
    _python(tmp_path / "python3", (3, 11), "old")
    found = _find_python(tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
    assert "apt install python3-venv" in found.stderr


def test_a_given_python_that_is_too_old_is_refused(tmp_path: Path):
    _python(tmp_path / "old", (3, 11), "old")
    found = _find_python(tmp_path, PYTHON=str(tmp_path / "old"))
    assert found.returncode == 1
    assert "older than 3.12" in found.stderr
