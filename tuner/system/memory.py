"""The memory of this process, and a bound on what one step may add to it.

A file that asks for more ends the step, and neither the machine nor its other processes.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HELD = Path("/proc/self/statm")


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Let the process take so many bytes beyond what it has; raise MemoryError for more.

    The bound is the whole process's, so it is for a step that yields to nobody. Only Linux holds
    such a bound, and says what is in use already; elsewhere there is none.
    """
    if not _HELD.exists():
        yield
        return
    held, _ = _held_bytes()
    before = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [held + more_bytes, *(one for one in before if one != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def resident_bytes() -> int:
    """Return what the process takes of the machine's memory; 0 where nobody says (not on Linux)."""
    return _held_bytes()[1] if _HELD.exists() else 0


def _held_bytes() -> tuple[int, int]:
    """Return what the process has of addresses and of the machine's memory (proc(5), statm)."""
    addresses, resident = map(int, _HELD.read_text(encoding="ascii").split()[:2])
    return addresses * resource.getpagesize(), resident * resource.getpagesize()
