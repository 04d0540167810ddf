"""A bound on the memory that one step may add to what this process has.

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
    pages = int(_HELD.read_text(encoding="ascii").split()[0])  # of addresses: proc(5), statm
    held = pages * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [held + more_bytes, *(each for each in before if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
