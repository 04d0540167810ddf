"""The workload of a sweep: requests that fit the engine, their SLO, what is replayed. Pure."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import TraceError, UsageError
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import (
    LEAST_PART_S,
    LOADED,
    MIN_STEP_S,
    MOST_TWIN_REQUESTS,
    QUEUE_SHARE,
    TPOT_SLACK,
    TTFT_SLACK,
)
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import (
    Window,
    arrays,
    busiest_rows,
    choose_part,
    in_window,
    parse_duration_s,
    sample_window,
)


def parse_step_s(text: str) -> float:
    """Read a ``--step``. Raises UsageError for what is no duration, or tells nothing."""
    step_s = parse_duration_s(text, option="--step")
    if step_s < MIN_STEP_S:
        raise UsageError(
            f"--step {text}: so short a replay tells nothing",
            hint=f"Give at least --step {MIN_STEP_S:g}s.",
        )
    return step_s


def affordable_step_s(wanted_s: float, *, steps: float, budget_s: float, starts_s: float) -> float:
    """Return how long each of so many steps may be, at most what was asked. Raises UsageError when
    the budget does not allow the shortest run."""
    left_s, least_s = max(0.0, budget_s - starts_s), MIN_STEP_S * steps
    if left_s < least_s:
        raise UsageError(
            f"--budget leaves {left_s:.0f}s for replays beside the engine starts, the shortest "
            f"run needs about {least_s:.0f}s",
            hint=f"Give at least --budget {math.ceil(starts_s + least_s)}s.",
        )
    return min(wanted_s, left_s / steps)


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
    """Return the SLO that an idle engine's own speed implies for these requests: twice its TPOT,
    and five times the TTFT plus half of the median E2EL."""
    lengths = [(each.input_length, max(1, each.output_length)) for each in requests]
    e2el_s = float(np.median([unloaded.residence_s(*each) for each in lengths]))
    return Slo(
        ttft_s=TTFT_SLACK * unloaded.ttft_s + QUEUE_SHARE * e2el_s,
        ttft_s_per_input_token=TTFT_SLACK * unloaded.ttft_s_per_input_token,
        tpot_s=TPOT_SLACK * unloaded.tpot_s if unloaded.tpot_s > 0 else None,
        derived=True,
    )


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic of one sweep and what it must meet."""

    slo: Slo
    unloaded: Unloaded
    requests: tuple[TraceRequest, ...]
    """All that fit the engine and were served, in order of arrival."""

    part: Window
    window: Window
    """What one step replays."""

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

    def queued(self, cap: int, *, held: float) -> float:
        """Return the share of the twin's requests whose turn comes in time at ``cap``, if each
        holds its slot for ``held`` times as long as on an idle engine.

        First come first served over ``cap`` slots. It sees a queue that grows over hours, which no
        window shows: each begins without it. Aborted requests take no slot.
        """
        free, good = [-math.inf] * cap, 0
        for request in self.twin_requests:
            starts_s = [request.arrival_s]
            if request.status == "ok":
                length = max(1, request.output_length)
                residence_s = held * self.unloaded.residence_s(request.input_length, length)
                starts_s = []
                for _ in range(request.n):
                    starts_s.append(max(request.arrival_s, heapq.heappop(free)))
                    heapq.heappush(free, starts_s[-1] + residence_s)
            waited_s = min(starts_s) - request.arrival_s
            good += waited_s <= self.slo.ttft_limit_s(request.input_length)
        return good / len(self.twin_requests)


def choose_windows(
    requests: Sequence[TraceRequest], unloaded: Unloaded, *, window: str, step_s: float
) -> tuple[Window, Window]:
    """Return the part that is asked for, and the window of it that a step replays. Raises
    TraceError when nothing arrives in it."""
    part = choose_part(requests, window, length_s=step_s)
    ends_s = [unloaded.residence_s(each.input_length, each.output_length) for each in requests]
    drain_s = LOADED * float(np.percentile(ends_s, 95))
    return part, sample_window(requests, part, step_s=step_s, drain_s=drain_s)


def workload_of(  # noqa: PLR0913, PLR0917 - what was chosen
    requests: Sequence[TraceRequest],
    slo: Slo,
    unloaded: Unloaded,
    part: Window,
    window: Window,
    step_s: float,
) -> Workload:
    """Return the workload of what was chosen. Raises TraceError when nothing arrives in it."""
    inside = tuple(in_window(requests, part))
    if not inside:
        raise TraceError(f"window {part}: nothing to replay", hint="Choose another --window.")
    length_s = part.length_s
    if len(inside) > MOST_TWIN_REQUESTS:
        inside = inside[busiest_rows(*arrays(inside), MOST_TWIN_REQUESTS)]
        length_s = inside[-1].arrival_s - inside[0].arrival_s
    length_s = max(length_s, LEAST_PART_S)
    return Workload(slo, unloaded, tuple(requests), part, window, step_s, inside, length_s)
