"""``tuner doctor``: check the machine, print a line for each check."""

import sys
import time

from tuner.commands.options import DoctorOptions
from tuner.engines.devices import DeviceMeter, checks_of
from tuner.errors import GateError
from tuner.replay.records import DEVICE
from tuner.system.printable import printable
from tuner.views.text import print_json

WATCHED_S = 1.0
"""Time over which the cores are watched."""


def run(options: DoctorOptions) -> None:
    """Check and print. Raises GateError when a check fails."""
    meter = DeviceMeter()
    time.sleep(WATCHED_S)
    reading = dict(zip(DEVICE.names or (), meter.read(), strict=True))
    checks = checks_of(reading["others"] + reading["steal"])
    if options.json:
        print_json({"checks": checks})
    else:
        for each in checks:
            line = f"{each.status}  {each.name}: {each.result} {each.cure}"
            sys.stdout.write(f"{printable(line.rstrip())}\n")
    if failed := [check for check in checks if check.status == "FAIL"]:
        first = failed[0]
        raise GateError(
            f"{len(failed)} of {len(checks)} checks failed: {first.name}: {first.result}",
            hint=first.cure,
        )
