"""One answer of the doctor. Pure."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    """What was asked, what came of it, and what to do when it failed."""

    name: str
    status: Literal["PASS", "FAIL", "SKIP"]
    said: str
    cure: str = ""


def judged(name: str, said: str, *, failed: bool, cure: str) -> Check:
    """Return PASS, or FAIL with its cure."""
    return Check(name, "FAIL", said, cure) if failed else Check(name, "PASS", said)


def skipped(name: str, why: str) -> Check:
    return Check(name, "SKIP", why)
