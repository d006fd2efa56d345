"""The container's health: 0 when /readyz answers 200. The address is the one that the server wrote to run.json."""

import http.client
import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 3.0


def check(run_file: Path) -> str:
    """Why it is not healthy; empty where it is."""
    try:
        url = urlsplit(json.loads(run_file.read_text())["url"])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_S)
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read(1_000).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return f"no answer: {error!r}"
    return "" if answer.status == http.client.OK else body


if __name__ == "__main__":
    problem = check(Path(os.environ.get("FAIRLANE_DATA_DIR", "var")) / "run.json")
    sys.stdout.write(problem)
    sys.exit(bool(problem))
