"""A configuration applied to a running server, over its API and past it on the database: requests are judged by it within a second."""

import time
from pathlib import Path

import httpx
from click.testing import CliRunner, Result

from appliance.cli.main import cli
from tests.inference.test_serve import ADMIN, HEADERS, Served, serving, until


def config(served: Served, *arguments: str) -> Result:
    """`fairlane config`, with the data directory of the server."""
    environ = {"FAIRLANE_DATA_DIR": str(served.data_dir), "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN}
    return CliRunner(env=environ).invoke(cli, ("config", *arguments), prog_name="fairlane")


def test_an_applied_file_holds_within_a_second(tmp_path: Path, export: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    with serving(tmp_path / "data", export) as served:
        for value, reach in ((7, ("--server", served.url)), (9, ())):
            file.write_text(f"tenants:\n  default: {{overrides: {{rpm: {value}}}}}\n")
            assert config(served, "plan", str(file), *reach).exit_code == 2
            applied = config(served, "apply", str(file), *reach)
            assert applied.exit_code == 0 and "applied: 1 to change" in applied.stdout, applied.stderr
            began_s = time.monotonic()
            asked: list[str] = []

            def limit(asked: list[str] = asked) -> str:
                answer = httpx.post(served.url + "/v1/completions", json={"prompt": ""}, headers=HEADERS)
                asked.append(answer.headers.get("x-ratelimit-limit-requests", ""))
                return asked[-1]

            until(lambda value=value: limit() == str(value), served.log)
            assert time.monotonic() - began_s < 1, asked
            assert config(served, "plan", str(file), *reach).exit_code == 0
        token = tmp_path / "token"
        for text, words in (("no-such-token-0123456789", "incorrect API key"), ("two\nlines", "holds no admin token")):
            token.write_text(text)
            wrong = config(served, "plan", str(file), "--server", served.url, "--token-file", str(token))
            assert wrong.exit_code == 1 and words in wrong.stderr
    nobody = config(served, "plan", str(file), "--server", served.url)
    assert nobody.exit_code == 1 and "does not answer" in nobody.stderr
