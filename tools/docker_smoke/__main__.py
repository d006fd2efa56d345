"""`make docker-smoke`: builds the image and runs compose.yaml for real, on this machine's Docker engine or one started for it.

usage: python -m tools.docker_smoke [--or-skip] [--limit-s SECONDS]

Writes var/docker-smoke.json: a list of {name, ok, detail}, one a check, the last one with what was measured; `ok` is null for a check
that was not begun within the limit. Exit status: 0 all is well, 1 a check failed, 2 there is no Docker engine here (0 with --or-skip,
which says why).
"""

import argparse
import json
import math
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.docker_smoke.checks_lasting import CHECKS_LASTING
from tools.docker_smoke.checks_profiles import CHECKS_PROFILES
from tools.docker_smoke.checks_running import CHECKS_RUNNING
from tools.docker_smoke.engine import MADE, Docker, NoEngine, docker_engine, ensure_base, require_containers
from tools.docker_smoke.stack import COMPOSE_FILE, IMAGE, ROOT, Stack

OUT_PATH = ROOT / "var" / "docker-smoke.json"


def run_checks(docker: Docker, checks: tuple[Callable[[Stack], str], ...], ends_s: float, *, has_registry: bool) -> list[dict[str, Any]]:
    """Each check in its turn, on one project; what they depend on is gone afterwards. One that fails does not hold up the others.
    None begins after `ends_s`, of `time.monotonic`."""
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fairlane-smoke-") as scratch:
        stack = Stack(docker, Path(scratch), has_registry)
        try:
            for check in checks:
                name, began_s = check.__name__.removeprefix("check_").replace("_", " "), time.monotonic()
                if began_s > ends_s:
                    records.append({"name": name, "ok": None, "detail": "not begun within the limit"})
                    continue
                try:
                    ok, detail = True, check(stack)
                except Exception as error:  # noqa: BLE001 (whatever it is, the others are to be tried)
                    ok, detail = False, f"{type(error).__name__}: {error}"
                records.append({"name": name, "ok": ok, "detail": detail})
                print(f"{'ok    ' if ok else 'FAILED'} {name} ({time.monotonic() - began_s:.0f} s): {detail}", flush=True)
        finally:
            stack.close()
    measured = ", ".join(f"{key} {value:.1f}" for key, value in stack.measured.items())
    return [*records, {"name": "measured", "ok": bool(measured), "detail": measured}]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.docker_smoke", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--or-skip", action="store_true", help="no Docker engine is no failure")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="no check begins later than this")
    options = parser.parse_args(arguments)
    ends_s = time.monotonic() + options.limit_s
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # containers and engine go, however this ends
    try:
        with docker_engine() as docker:
            base = ensure_base(docker)
            print(f"docker: {docker.program}; base image: {base}; image: {IMAGE}", flush=True)
            require_containers(docker, COMPOSE_FILE)
            records = run_checks(docker, (*CHECKS_RUNNING, *CHECKS_LASTING, *CHECKS_PROFILES), ends_s, has_registry=base != MADE)
    except NoEngine as error:
        print(f"docker-smoke {'is skipped' if options.or_skip else 'can not run'}: {error}", file=sys.stderr)
        return 0 if options.or_skip else 2
    OUT_PATH.parent.mkdir(exist_ok=True)
    OUT_PATH.write_text(json.dumps(records, indent=1) + "\n")
    found = Counter(record["ok"] for record in records)
    print(f"{found[True]} passed, {found[False]} failed, {found[None]} not begun within the limit")
    return 1 if found[False] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
