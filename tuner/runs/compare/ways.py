"""The ways of serving that are compared, and the traffic that each is sent: rows of data.

A load is a mean number of requests in flight, open loop, at the untuned engine, by the twin. The
requests of a window are thinned out, or copied, until there are so many; time is never stretched.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.errors import TraceError, UsageError
from tuner.profile.evidence import StoredTwin
from tuner.trace.trace import TraceRequest
from tuner.traffic.load import scale_load
from tuner.traffic.window import Window, in_window
from tuner.twin.simulation import simulate, traffic_of

UNTUNED = 64
"""``max_num_seqs`` that nobody measured."""

SERVER = "server"


@dataclass(frozen=True, slots=True)
class Approach:
    name: str
    title: str
    workers: int = 0
    """Worker processes behind a queue, on one device; 0 batches continuously."""

    batch: int = 1
    """Requests that a worker serves together, or as many as come within ``wait_s``."""

    wait_s: float = 0.0


APPROACHES = (
    Approach("worker", "one worker", 1),
    Approach("two-workers", "two workers", 2),
    Approach("static", "static batching", 1, batch=16, wait_s=0.05),
    Approach("untuned", "untuned"),
    Approach("tuned", "tuned"),
    Approach(SERVER, "tuned, behind a server"),
)
"""In the order of the story."""

UNIFORM = "uniform"
LEVELS: dict[str, int | None] = {"recorded": None, "very-heavy": 25, UNIFORM: 25}
"""Name → requests in flight; None is the trace as it is. UNIFORM has every length the mean. Tables
are in this order."""

MOST = 1_000_000
"""Requests in one window beyond which no level is searched for."""


def chosen(names: str | None, *, simulated: bool) -> tuple[Approach, ...]:
    """Return the approaches of a list such as ``worker,tuned``, in the order of the story.

    None is all that there can be but the server, which takes half a minute to start. Raises
    UsageError for a name that is unknown, or needs a real engine.
    """
    if names is None:
        can_be = [e for e in APPROACHES if e.name != SERVER and not (simulated and e.workers)]
        return tuple(can_be)
    named = names_in(names, [each.name for each in APPROACHES], option="--approaches")
    approaches = tuple(each for each in APPROACHES if each.name in named)
    for each in approaches:
        if simulated and (each.workers or each.name == SERVER):
            what = f"--approaches {each.name} needs a real engine"
            raise UsageError(what, hint="Leave out --world.")
    return approaches


def names_in(text: str, known: Sequence[str], *, option: str) -> list[str]:
    """Read a list of names, in the order of those that are known. Raises UsageError for others."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            hint = f"Choose of {', '.join(known)}."
            raise UsageError(f"{option}: {name!r} is not known", hint=hint)
    return [name for name in known if name in names]


def mean_in_flight(begin_s: Floats, end_s: Floats, *, from_s: float, to_s: float) -> float:
    """Return the mean over time of how many requests are in flight in [from_s, to_s)."""
    stay_s = np.minimum(end_s, to_s) - np.maximum(begin_s, from_s)
    return float(np.maximum(0.0, stay_s).sum() / (to_s - from_s))


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a comparison, and the twin that says how many are in flight."""

    requests: Sequence[TraceRequest]
    windows: Sequence[Window]
    twin: StoredTwin | None
    """None where only the trace as it is is sent."""

    block_size: int
    """Tokens that one of the trace's hash ids stands for."""

    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    """(requests in flight, block) → requests that are sent in its window."""

    def sent(self, level: str, block: int) -> list[TraceRequest]:
        """Return what is sent in a block, the same to every approach. Raises TraceError."""
        if (in_flight := LEVELS[level]) is None:
            return in_window(self.requests, self.windows[block])
        if (in_flight, block) not in self.counts:
            self.counts[in_flight, block] = self._count(in_flight, block)
        sent = self._thinned(self.counts[in_flight, block], block)
        return uniform(sent, self.requests) if level == UNIFORM else sent

    def in_flight(self, sent: Sequence[TraceRequest], window: Window) -> float:
        """Return how many of these requests are in flight on average at the untuned engine."""
        assert self.twin is not None
        traffic = traffic_of(sent, self.twin.shape, hash_block_size=self.block_size)
        slots = min(UNTUNED, len(self.twin.law.decode_s) - 1)
        rows = simulate(traffic, self.twin.law, self.twin.shape, max_num_seqs=slots).requests
        end_s = rows["end_s"]  # a refused one does not stay
        to_s = window.start_s + window.length_s
        return mean_in_flight(traffic.arrival_s, end_s, from_s=window.start_s, to_s=to_s)

    def _count(self, in_flight: int, block: int) -> int:
        """Return the fewest requests of which so many are in flight."""

        def reached(count: int) -> float:
            return self.in_flight(self._thinned(count, block), self.windows[block])

        most = max(2, len(in_window(self.requests, self.windows[block])))
        while reached(most) < in_flight:
            most *= 2
            if most > MOST:
                raise TraceError(
                    f"{MOST:,} requests in {self.windows[block]} are not enough for {in_flight} in "
                    "flight",
                    hint="Compare with --loads recorded.",
                )
        return 1 + bisect_left(range(1, most), float(in_flight), key=reached)

    def _thinned(self, count: int, block: int) -> list[TraceRequest]:
        sent = in_window(self.requests, self.windows[block])
        return scale_load(sent, count / len(sent), seed=block)


def uniform(sent: Sequence[TraceRequest], like: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Return the same arrivals as a careless test has them: every length the mean of ``like``,
    nothing shared, nobody who gives up."""
    lengths = np.array([(each.input_length, each.output_length) for each in like])
    prompt, output = (max(1, round(mean)) for mean in lengths.mean(axis=0).tolist())
    return [
        replace(
            each, input_length=prompt, output_length=output, status="ok", n=1, output_lengths=(),
            hash_ids=(),
        )
        for each in sent
    ]  # fmt: skip
