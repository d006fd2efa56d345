"""The lock files are complete: every pin has a hash, no address, and satisfies what pyproject.toml asks for.

`python -m tools.check_locks` prints each finding and ends with 1 if there is one; `make lock` is the cure.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)")
OLD_JAX = Version("0.11.2")
LOCKS = {"base.lock": ("build",), "cuda12.lock": ("build", "gpu"), "dev.lock": ("build", "dev"), "jax011.lock": ("build",)}
"""The extras of pyproject.toml that each lock covers."""


def pins(text: str) -> dict[str, Version]:
    """Locked versions by normalised name; the lowest one where platforms differ."""
    found: dict[str, Version] = {}
    for line in text.splitlines():
        if match := PIN.match(line):
            name, version = canonicalize_name(match[1]), Version(match[2])
            found[name] = min(version, found.get(name, version))
    return found


def form_findings(name: str, text: str) -> list[str]:
    """Pins without a hash, and lines that name an index or an address."""
    found = [f"{name}: an address or option: {line}" for line in text.splitlines() if "://" in line or line.startswith("-")]
    logical_lines = text.replace("\\\n", " ").splitlines()
    return found + [f"{name}: no hash: {line.split()[0]}" for line in logical_lines if PIN.match(line) and "--hash=sha256:" not in line]


def requirement_findings(name: str, locked: dict[str, Version], wanted: Iterable[Requirement]) -> list[str]:
    """Requirements that the lock lacks or answers with a version they exclude."""
    found: list[str] = []
    for requirement in wanted:
        version = locked.get(canonicalize_name(requirement.name))
        if version is None:
            found.append(f"{name}: {requirement} is in pyproject.toml and not in the lock: run `make lock`")
        elif not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{name}: {requirement} is in pyproject.toml, the lock has {version}: run `make lock`")
    return found


def check(root: Path) -> list[str]:
    """Findings of all lock files under `root`/requirements."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found: list[str] = []
    locked_by_file: dict[str, dict[str, Version]] = {}
    for name, extras in LOCKS.items():
        text = (root / "requirements" / name).read_text()
        texts = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
        wanted = [requirement for line in texts if (requirement := Requirement(line)).name != project["name"]]
        locked_by_file[name] = pins(text)
        found += form_findings(name, text) + requirement_findings(name, locked_by_file[name], wanted)
    found += form_findings("model.lock", (root / "requirements" / "model.lock").read_text())
    base = locked_by_file["base.lock"]
    for other in ("dev.lock", "cuda12.lock"):
        locked = locked_by_file[other]
        found += [f"{other}: {name} is {locked.get(name)}, base.lock has {base[name]}" for name in base if locked.get(name) != base[name]]
    if locked_by_file["jax011.lock"]["jax"] != OLD_JAX:
        found.append(f"jax011.lock: jax is {locked_by_file['jax011.lock']['jax']}, not {OLD_JAX}")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_locks", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(arguments)
    problems = check(Path())
    print("\n".join(problems) or "lock files: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
