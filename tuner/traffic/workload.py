"""The workload of a sweep: requests that fit the engine, their SLO, what is replayed. Pure."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import TraceError, UsageError
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import (
    FASTEST,
    LEAST_PART_S,
    LOADED,
    MIN_STEP_S,
    MOST_QUEUED,
    MOST_TWIN_REQUESTS,
)
from tuner.traffic.sampling import arrays, busiest_rows, choose_part, in_window, sample_windows
from tuner.traffic.slo import Slo, Unloaded, derive_slo
from tuner.traffic.window import Part, Window, parse_duration_s


def parse_step_s(text: str) -> float:
    """Read a ``--step``. Raises UsageError for what is no duration, or tells nothing."""
    step_s = parse_duration_s(text, option="--step")
    if step_s < MIN_STEP_S:
        raise UsageError(
            f"--step {text}: so short a replay tells nothing",
            hint=f"Give at least --step {MIN_STEP_S:g}s.",
        )
    return step_s


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic of one sweep and what it must meet."""

    slo: Slo
    unloaded: Unloaded
    requests: tuple[TraceRequest, ...]
    """All that fit the engine and were served, in order of arrival."""

    part: Part
    windows: tuple[Window, ...]
    """What one step replays, one after the other."""

    step_s: float
    """About how long that takes, and how long a ramp is."""

    twin_requests: tuple[TraceRequest, ...]
    """The requests of the part, MOST_TWIN_REQUESTS at most, that the twin replays."""

    twin_length_s: float
    """How long they take to arrive."""

    @property
    def arrival_rate_rps(self) -> float:
        return len(self.twin_requests) / self.twin_length_s

    def sent_in(self, window: Window) -> list[TraceRequest]:
        """Return what a replay of a window sends."""
        return in_window(self.requests, window)

    def bound(self, window: Window, cap: int) -> float:
        """Return the most that ``cap`` can attain of a window's requests, by Little's law."""
        return littles_bound(
            self.sent_in(window), self.unloaded, self.slo, cap=cap, scored_from_s=window.start_s
        )

    def queued(self, cap: int, *, held: float) -> float:
        """Return the share of the twin's requests whose turn comes in time at ``cap``, if each
        holds its slot for ``held`` times as long as on an idle engine.

        It sees a queue that grows over hours, which no window shows: each begins without it.
        """
        return littles_bound(
            self.twin_requests[:MOST_QUEUED], self.unloaded, self.slo, cap=cap, held=held
        )


def keep_what_fits(
    requests: Sequence[TraceRequest], *, max_model_len: int
) -> tuple[list[TraceRequest], int]:
    """Return the requests that the engine can take and how many it cannot.

    Nothing is clipped: clipped it would be other traffic. Raises TraceError when nothing is left.
    """
    kept = [
        request
        for request in requests
        if request.input_length + max(1, request.output_length) <= max_model_len
    ]
    if not kept:
        raise TraceError(
            f"every request is longer than max_model_len={max_model_len}",
            hint="Use a model with a longer context, or raise it with --set max_model_len=N.",
        )
    return kept, len(requests) - len(kept)


def slo_for(requests: Sequence[TraceRequest], unloaded: Unloaded) -> Slo:
    """Return the derived SLO of these requests."""
    return derive_slo(
        unloaded, [(request.input_length, max(1, request.output_length)) for request in requests]
    )


def affordable_step_s(wanted_s: float, *, steps: float, budget_s: float, starts_s: float) -> float:
    """Return how long each of so many steps may be, at most what was asked. Raises UsageError when
    the budget does not allow the shortest sweep."""
    left_s = max(0.0, budget_s - starts_s)
    if left_s < MIN_STEP_S * steps:
        raise UsageError(
            f"--budget leaves {left_s:.0f}s for replays beside the engine starts, the shortest "
            f"sweep needs about {MIN_STEP_S * steps:.0f}s",
            hint=f"Give at least --budget {math.ceil(starts_s + MIN_STEP_S * steps)}s.",
        )
    return min(wanted_s, left_s / steps)


def choose_workload(
    requests: Sequence[TraceRequest], slo: Slo, unloaded: Unloaded, *, window: str, step_s: float
) -> Workload:
    """Return the workload of the part that is asked for. Raises TraceError when nothing arrives in
    it."""
    part = choose_part(requests, window, length_s=step_s)
    ends_s = [unloaded.residence_s(each.input_length, each.output_length) for each in requests]
    drain_s = LOADED * float(np.percentile(ends_s, 95))
    windows = sample_windows(requests, part, step_s=step_s, drain_s=drain_s)
    return workload_of(requests, slo, unloaded, part, windows, step_s)


def workload_of(  # noqa: PLR0913, PLR0917 - what was chosen
    requests: Sequence[TraceRequest],
    slo: Slo,
    unloaded: Unloaded,
    part: Part,
    windows: Sequence[Window],
    step_s: float,
) -> Workload:
    """Return the workload of what was chosen. Raises TraceError when nothing arrives in it."""
    inside = tuple(each for each in requests if part.begin_s <= each.arrival_s < part.end_s)
    if not inside:
        raise TraceError(f"window {part}: nothing to replay", hint="Choose another --window.")
    length_s = part.length_s
    if len(inside) > MOST_TWIN_REQUESTS:
        inside = inside[busiest_rows(*arrays(inside), MOST_TWIN_REQUESTS)]
        length_s = inside[-1].arrival_s - inside[0].arrival_s
    length_s = max(length_s, LEAST_PART_S)
    return Workload(slo, unloaded, tuple(requests), part, tuple(windows), step_s, inside, length_s)


def littles_bound(  # noqa: PLR0913 - what waits, and for how long
    requests: Iterable[TraceRequest],
    unloaded: Unloaded,
    slo: Slo,
    *,
    cap: int,
    scored_from_s: float = -math.inf,
    held: float = FASTEST,
) -> float:
    """Return the most that ``cap`` can attain of the requests from ``scored_from_s`` on, by
    Little's law; those before only hold slots.

    Each holds its slot for ``held`` of what it does on an idle engine. First come first served over
    ``cap`` slots: no real schedule starts them earlier. Aborted ones take no slot and are all taken
    for good, which can only raise the bound.
    """
    free = [-math.inf] * cap
    good = total = 0
    for request in requests:
        starts_s = [request.arrival_s]
        if request.status == "ok":
            length = max(1, request.output_length)
            residence_s = held * unloaded.residence_s(request.input_length, length)
            starts_s = []
            for _ in range(request.n):
                starts_s.append(max(request.arrival_s, heapq.heappop(free)))
                heapq.heappush(free, starts_s[-1] + residence_s)
        if request.arrival_s >= scored_from_s:
            waited_s = min(starts_s) - request.arrival_s
            total += 1
            good += waited_s <= slo.ttft_limit_s(request.input_length)
    return good / total if total else 1.0
