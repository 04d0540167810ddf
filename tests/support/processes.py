"""The processes that a test has started, and how to wait for them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 120.0


def status(pid: int) -> tuple[int, str] | None:
    """Return parent and state of a process, or None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0]


def lives(pid: int) -> bool:
    now = status(pid)
    return now is not None and now[1] != "Z"


def family(pid: int) -> set[int]:
    """Return all living descendants of a process."""
    parents = {
        int(entry.name): now[0]
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and (now := status(int(entry.name))) and now[1] != "Z"
    }
    result, todo = set[int](), {pid}
    while todo:
        todo = {child for child, parent in parents.items() if parent in todo} - result
        result |= todo
    return result


def leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def cores(pid: int | None = None) -> set[int]:
    """Return the engines of a process, which alone of all descendants lead sessions."""
    return {each for each in family(pid or os.getpid()) if leads(each)}
