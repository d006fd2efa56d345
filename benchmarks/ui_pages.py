"""How long the web pages take to make while there are 10,000 tenants.

    python -m benchmarks.ui_pages

A served process with a fake engine, asked over HTTP by a session as a browser would, one page at a time.
"""

import argparse
import asyncio
import re
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from appliance.settings import Settings
from benchmarks.control_plane import full_server
from benchmarks.many_tenants import prepare, slug_of
from benchmarks.noisy_neighbour import ADMIN_TOKEN
from benchmarks.record import RESULTS, keep
from benchmarks.servers import API_KEY, running
from benchmarks.tail.case import Figure
from tests.text.smollm2 import write_export

PASSWORD = "correct horse battery"
CALLS = 15


def measure(base_url: str, tenants: int) -> dict[str, list[float]]:
    """Milliseconds of each call, by page."""
    middle = slug_of(tenants // 2)
    pages = {
        "first page": "/ui/tenants",
        "searched": f"/ui/tenants?search={middle[-3:]}",
        "sorted by name, a page in the middle": f"/ui/tenants?sort=name&down=1&page={tenants // 100}",
        "sorted by use": "/ui/tenants?sort=use&down=1",
        "one tenant": f"/ui/tenants/{middle}",
        "keys": "/ui/keys",
        "tiers": "/ui/tiers",
        "overview": "/ui/",
    }
    with httpx.Client(base_url=base_url, timeout=60) as browser:
        token = re.search(r'csrf_token" value="(\w+)"', browser.get("/ui/").text)
        assert token, "the login form has a token"
        form = {"csrf_token": token[1], "name": "admin", "password": PASSWORD}
        assert browser.post("/ui/login", data=form).status_code == 303
        return {name: [_milliseconds(browser, path) for _ in range(CALLS)] for name, path in pages.items()}


def _milliseconds(browser: httpx.Client, path: str) -> float:
    began_s = time.perf_counter()
    answer = browser.get(path)
    assert answer.status_code == 200, f"{path}: {answer.status_code}"
    return (time.perf_counter() - began_s) * 1e3


async def served(tenants: int) -> dict[str, list[float]]:
    """In a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as name:
        folder, export = Path(name) / "data", Path(name) / "export"
        folder.mkdir()
        export.mkdir()
        write_export(export)
        await prepare(Settings(data_dir=str(folder), bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN), tenants)
        server = full_server(folder, export, {"FAIRLANE_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD})
        async with running(server) as full:
            return await asyncio.to_thread(measure, full.endpoint.base_url, tenants)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ui_pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    calls_ms = asyncio.run(served(arguments.tenants))
    figures = [Figure(f"{arguments.tenants} tenants: {name}, P50", statistics.median(ms), "ms", bar=200) for name, ms in calls_ms.items()]
    keep("ui-pages", figures, {"tenants": arguments.tenants, "calls_ms": calls_ms}, arguments.out)


if __name__ == "__main__":
    main()
