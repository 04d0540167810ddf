"""Split the cores between tuner, which sends and reads, and the engines that it starts."""

import os
from collections.abc import Set as AbstractSet
from contextlib import suppress

OWN_CORE_FROM = 3
"""Cores: of two, the engine and the front end of its server need both."""


def split(cores: AbstractSet[int]) -> tuple[AbstractSet[int], AbstractSet[int]]:
    """Return the client's cores and the engine's: the last one and the others, of three or more.

    >>> split({4, 5}), split({3, 9, 12})
    (({4, 5}, {4, 5}), ({12}, {9, 3}))
    """
    if len(cores) < OWN_CORE_FROM:
        return cores, cores
    client = {max(cores)}
    return client, cores - client


def leave_the_clients_core() -> None:
    """Keep this process, and what it starts, off the client's core. No-op where the system has no
    affinity."""
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, split(os.sched_getaffinity(0))[1])
