"""`fairlane doctor`: looks at the machine and says what to do."""

import asyncio
import sys
from dataclasses import asdict

import click

from appliance.cli.common import CONFIG_HELP, fails_clearly, load, print_json
from appliance.cli.settings_table import settings_flags
from appliance.doctor.findings import State
from appliance.doctor.probes import examine


@click.command("doctor", short_help="Check this machine and say what to do.")
@click.option("--config", metavar="FILE", help=CONFIG_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: name, state, found and remedy of each check.")
@settings_flags
@fails_clearly
def doctor(config: str | None, as_json: bool, **flags: object) -> None:
    """Check driver, model files, memory, port, database, disks, clock and open files for the settings that `fairlane serve` would have.

    It changes nothing, and may be run beside a server. Exit code 1 where a check failed.
    """
    findings = asyncio.run(examine(load(flags, config).settings))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        width = max(len(each.name) for each in findings)
        for each in findings:
            click.echo(f"{each.state:8} {each.name:{width}} {each.found}" + (f"\n{'':{width + 9}} -> {each.remedy}" if each.remedy else ""))
    sys.exit(any(finding.state is State.FAILED for finding in findings))
