"""Run targets of the Makefile one after another and say what each took.

    python3 scripts/shares.py [--make MAKE] NAME=SECONDS...

Ends at the first that fails, with its exit code. The seconds are what a share may take on two cores
with nothing else running: one that takes longer is marked and fails nothing, for a busy machine is
no bug. Only the standard library is used: the first share may be the one that sets .venv up.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    name: str
    allowed_s: float

    @classmethod
    def of(cls, text: str) -> "Share":
        name, _, seconds = text.partition("=")
        return cls(name, float(seconds))


@dataclass(frozen=True)
class Taken:
    share: Share
    elapsed_s: float
    cpu_s: float
    """Of all processes that it started and waited for."""

    code: int


def run(make: str, share: Share) -> Taken:
    begun_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [make, "--no-print-directory", share.name]
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - the Makefile's own
    elapsed_s, after = time.monotonic() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(share, elapsed_s, cpu_s, code)


def table(taken: Sequence[Taken]) -> str:
    """Return a row for each share, and one for all of them."""
    whole = Taken(
        Share("all", sum(one.share.allowed_s for one in taken)),
        sum(one.elapsed_s for one in taken),
        sum(one.cpu_s for one in taken),
        code=0,
    )
    lines = [f"{'share':10}{'took':>8}{'of':>8}{'CPU':>8}"]
    for one in (*taken, whole):
        times_s = (one.elapsed_s, one.share.allowed_s, one.cpu_s)
        clocks = "".join(f"{_clock(seconds):>8}" for seconds in times_s)
        lines.append(f"{one.share.name:10}{clocks}  {_remark(one)}".rstrip())
    return "\n".join(lines)


def _remark(one: Taken) -> str:
    if one.code:
        return "failed"
    return "longer than it may" if one.elapsed_s > one.share.allowed_s else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--make", default="make")
    parser.add_argument("shares", nargs="+", type=Share.of, metavar="NAME=SECONDS")
    options = parser.parse_args()
    taken: list[Taken] = []
    try:
        for share in options.shares:
            taken.append(run(options.make, share))
            if taken[-1].code:
                break
    except KeyboardInterrupt:
        return 130
    finally:
        if taken:
            print(f"\n{table(taken)}", flush=True)
    return taken[-1].code


if __name__ == "__main__":
    sys.exit(main())
