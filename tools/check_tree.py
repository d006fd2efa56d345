"""Rules for tracked files that no linter knows: no machine's own paths, no registry hosts, no large files, no stray endings.

`python -m tools.check_tree` prints each finding as `path:line: what` and ends with 1 if there is one.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_BYTES = 1_000_000
VENDORED = "vendor"
"""Folder of files of others, kept as they were published."""

FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~$}])/(?:work|root|home/[a-z]\w*)(?:/|(?![\w-]))"),
    "a package registry's address": re.compile(r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|deb\.debian\.org"),
    "a merge conflict": re.compile(r"^(?:<{7}|>{7}) "),
}


def findings(path: Path, text: str) -> Iterator[str]:
    """What is wrong with one text file, as `path:line: what`."""
    if VENDORED in path.parts:
        return
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in FORBIDDEN.items():
            if pattern.search(line):
                yield f"{path}:{number}: {what}: {line.strip()[:100]}"
        if line != line.rstrip() and path.suffix != ".md":
            yield f"{path}:{number}: white space at the end of the line"
    if text and not text.endswith("\n"):
        yield f"{path}: no line end at the end of the file"


def check(paths: list[Path]) -> list[str]:
    """Findings of all files; a file that is not UTF-8 text is judged by its size alone."""
    found: list[str] = []
    for path in paths:
        content = path.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            found.append(f"{path}: {len(content)} bytes, more than {MAX_FILE_BYTES}: make it where it is needed instead")
        try:
            found.extend(findings(path, content.decode()))
        except UnicodeDecodeError:
            continue
    return found


def tracked_files() -> list[Path]:
    """Files that git tracks and that are there."""
    names = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [path for name in names.split("\0") if name and (path := Path(name)).is_file()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_tree", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(arguments)
    problems = check(tracked_files())
    print("\n".join(problems) or "tracked files: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
