"""One answer of the doctor. Pure."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One check: its name, what came of it, and the cure where it failed."""

    name: str
    status: Literal["PASS", "FAIL", "SKIP"]
    said: str
    cure: str = ""


def checked(name: str, said: str, *, failed: bool, cure: str) -> MachineCheck:
    """Return PASS, or FAIL with its cure."""
    return MachineCheck(name, "FAIL", said, cure) if failed else MachineCheck(name, "PASS", said)


def skipped(name: str, why: str) -> MachineCheck:
    return MachineCheck(name, "SKIP", why)
