"""`python -m dashboards`: write json/ anew."""

from pathlib import Path

from dashboards.build import dashboard_json
from dashboards.pages import PAGES

FOLDER = Path(__file__).parent / "json"


def main() -> None:
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
    main()
