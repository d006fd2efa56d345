#!/usr/bin/env bash
# Prints the path of a Python >= 3.12 that runs and can make a venv; else says on stderr what to do, and ends with 1.
#   find_python.sh [MINOR...]     minor versions to look for, best first (default: 13 12 14)
# PYTHON=/path/to/python3 is taken without a search. A name on the PATH proves nothing: a pyenv shim for a version that is
# not selected exists and fails, so every candidate is run.
set -euo pipefail

minors=("$@")
[ $# -gt 0 ] || minors=(13 12 14)

suits() { # COMMAND [MINOR]: runs, is new enough (exactly 3.MINOR when given), and can make a venv
  "$1" - "${2:-}" <<'PROGRAM' >/dev/null 2>&1
import ensurepip, sys, venv
wanted = sys.argv[1]
sys.exit(0 if (sys.version_info[:2] == (3, int(wanted)) if wanted else sys.version_info >= (3, 12)) else 1)
PROGRAM
}

answer() { # COMMAND: print the interpreter itself, not a shim that another folder's settings could redirect
  "$1" -c 'import sys; print(sys.executable)'
  exit 0
}

if [ -n "${PYTHON:-}" ]; then
  if suits "$PYTHON"; then answer "$PYTHON"; fi
  echo "PYTHON=$PYTHON does not run, is older than 3.12, or has no venv module: give another one, or leave PYTHON out." >&2
  exit 1
fi

shopt -s nullglob
roots=("${PYENV_ROOT:-}" "${HOME:-/nonexistent}/.pyenv")
for minor in "${minors[@]}"; do
  candidates=("python3.$minor" python3)
  for root in "${roots[@]}"; do
    [ -z "$root" ] || candidates+=("$root"/versions/3."$minor".*/bin/python3)
  done
  candidates+=("$HOME"/.local/share/uv/python/cpython-3."$minor".*/bin/python3)
  for candidate in "${candidates[@]}"; do
    if suits "$candidate" "$minor"; then answer "$candidate"; fi
  done
done
if [ $# -eq 0 ] && suits python3; then answer python3; fi

echo >&2 'No Python 3.12 or newer that runs and can make a virtual environment was found.
Tried: python3.13, python3.12, python3.14 and python3 on the PATH, and the versions of pyenv ($PYENV_ROOT, ~/.pyenv).

  Debian 13, Ubuntu 24.04:  apt install python3-venv
  Debian 12:                its own Python is 3.11; install a newer one, for example `pyenv install 3.13`
  anywhere else:            make PYTHON=/path/to/python3.13 ...'
exit 1
