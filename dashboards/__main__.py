"""Write the dashboards of json/ anew: a file for each page, and none that no page has any more.

usage: python -m dashboards
"""

import argparse
import sys
from pathlib import Path

from dashboards.build import dashboard_json
from dashboards.pages import PAGES

FOLDER = Path(__file__).parent / "json"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(arguments)
    try:
        write()
    except OSError as error:
        print(f"{FOLDER} can not be written: {error}", file=sys.stderr)
        return 1
    return 0


def write() -> None:
    """Write a file for each page, and remove those that no page has any more."""
    wanted = {FOLDER / f"{page.uid}.json": dashboard_json(page) for page in PAGES}
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path not in wanted:
            path.unlink()
    for path, content in wanted.items():
        path.write_text(content)
        print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
