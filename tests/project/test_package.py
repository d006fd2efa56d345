"""A built package has what is read at run time, though it lies beside the packages in a clone."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK = """
from appliance.cli.grafana import DASHBOARDS
from appliance.dashboards.board import read_boards, read_rules
from appliance.db.revision import MIGRATIONS_DIR
from appliance.ui.assets import Assets
print(len(read_boards()), len(read_rules()), (MIGRATIONS_DIR / "env.py").is_file(), DASHBOARDS.is_dir(), Assets().url("dashboard.css")[:24])
"""


def test_a_built_package_reads_its_own_dashboards_rules_and_migrations(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    num_boards, num_rules = (
        len(list((ROOT / "dashboards" / "json").glob("*.json"))),
        (ROOT / "alerts" / "recording.yaml").read_text().count("record:"),
    )
    assert looked.stdout.split() == [str(num_boards), str(num_rules), "True", "True", "/ui/static/dashboard.css"], looked.stderr
