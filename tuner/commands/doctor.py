"""``tuner doctor``: check the machine, print a line for each check."""

import time
from dataclasses import asdict

from rich.console import Console

from tuner.commands.options import DoctorOptions
from tuner.engines.devices import Check, DeviceMeter, checks_of
from tuner.errors import GateError
from tuner.replay.records import DEVICE
from tuner.system.printable import printable
from tuner.views.text import print_json

WATCHED_S = 1.0
"""Time over which the cores are watched."""

STYLES = {"FAIL": "bold red", "SKIP": "dim", "PASS": None}


def run(options: DoctorOptions) -> None:
    """Check and print. Raises GateError when a check fails."""
    meter = DeviceMeter()
    time.sleep(WATCHED_S)
    reading = dict(zip(DEVICE.names or (), meter.read(), strict=True))
    checks = checks_of(reading["others"] + reading["steal"])
    if options.json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for check in checks:
            console.print(line_of(check), style=STYLES[check.status])
    if failed := [check for check in checks if check.status == "FAIL"]:
        first = failed[0]
        raise GateError(
            f"{len(failed)} of {len(checks)} checks failed: {first.name}: {first.result}",
            hint=first.cure,
        )


def line_of(check: Check) -> str:
    """Return a check as one line of any length."""
    return printable(f"{check.status}  {check.name}: {check.result} {check.cure}".rstrip())
