"""A bound on what one step may take of the memory: a file that asks for more ends the step, and
neither the machine nor its other processes."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HELD = Path("/proc/self/statm")


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Let the process take so many bytes beyond what it has, and no more: MemoryError is raised.

    For a step that yields to nobody, as the bound is the process's. Linux alone holds such a bound,
    and says what there is already; elsewhere there is none.
    """
    if not _HELD.exists():
        yield
        return
    held = int(_HELD.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [held + more_bytes, *(one for one in before if one != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
