"""Hand a fleet's requests to its replicas, compiled. Pure.

It stands alone: at every start the compiler's cache is compared with the source of this module
and of all that it imports.
"""

import numpy as np

from tuner.engines.scheduler.state import Floats, Ints
from tuner.system.jit import compiled


@compiled
def least_in_flight(arrival_s: Floats, lasting_s: Floats, replicas: int) -> Ints:
    """Return the replica of each request: the one with the fewest in flight, in turn among equals.

    ``lasting_s`` is how long each request is in flight.
    """
    size = len(arrival_s)
    chosen = np.zeros(size, np.int64)
    in_flight = np.zeros(replicas, np.int64)
    having = np.zeros(size + 1, np.int64)  # how many replicas have so many in flight
    having[0] = replicas
    fewest = 0
    ends = np.argsort(arrival_s + lasting_s)
    ended = 0
    last = replicas - 1
    for row in range(size):
        while ended < size and arrival_s[ends[ended]] + lasting_s[ends[ended]] <= arrival_s[row]:
            if ends[ended] < row:
                left = in_flight[chosen[ends[ended]]] = in_flight[chosen[ends[ended]]] - 1
                having[left + 1] -= 1
                having[left] += 1
                fewest = min(fewest, left)
            ended += 1
        best = (last + 1) % replicas
        while in_flight[best] > fewest:
            best = (best + 1) % replicas
        having[fewest] -= 1
        having[fewest + 1] += 1
        if not having[fewest]:
            fewest += 1
        in_flight[best] += 1
        chosen[row] = best
        last = best
    return chosen
