"""The length of a refinement's trial: the windows that the budget has time for. Pure.

An overloaded engine takes longer for a window than the window is, several times as long if need be:
what the knee takes for it, the profile's twin tells before anything starts.
"""

import math
from collections.abc import Iterator, Sequence

from tuner.errors import UsageError
from tuner.profile.stored_twin import StoredTwin
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Unloaded
from tuner.traffic.workload import MIN_STEP_S, Workload, choose_workload
from tuner.twin.simulation import simulate, traffic_of

SHORTER = 0.8
"""Of a step that takes too long, what is tried next."""

WORTH_TRIALS = 0.5
"""Share of a step that may be given up for time to search: less would show another traffic."""


def step_length(  # noqa: PLR0913 - what there is, what is asked, what it may cost
    requests: Sequence[TraceRequest],
    settings: SweepSettings,
    unloaded: Unloaded,
    twin: StoredTwin | None,
    *,
    cap: int,
    hit_share: float,
    steps: int,
    least_steps: int,
    starts_s: float,
) -> tuple[Workload, float]:
    """Return what each of so many steps replays, and how long one takes at the knee's cap.

    The longest of which ``least_steps`` fit the budget; shorter, down to half, where all of the
    steps fit then. Raises UsageError when the budget has no time for the shortest, TraceError when
    nothing can be replayed.
    """
    left_s, took_s = settings.budget_s - starts_s, 0.0
    longest: tuple[Workload, float] | None = None
    for workload in _ever_shorter(requests, settings, unloaded, left_s / steps):
        if longest is not None and workload.step_s < WORTH_TRIALS * longest[0].step_s:
            break
        took_s = workload.step_s
        if twin is not None:
            took_s = max(took_s, _taken_s(workload, settings, twin, cap, hit_share))
        if steps * took_s <= left_s:
            return workload, took_s
        if longest is None and least_steps * took_s <= left_s:
            longest = workload, took_s
    if longest is not None:
        return longest
    least_s = least_steps * took_s
    raise UsageError(
        f"--budget {settings.budget_s:.0f}s is too small: engine starts take about "
        f"{starts_s:.0f}s, {least_steps} replays {least_s:.0f}s at least",
        hint=f"Give at least --budget {math.ceil(least_s + starts_s)}s.",
    )


def _ever_shorter(
    requests: Sequence[TraceRequest],
    settings: SweepSettings,
    unloaded: Unloaded,
    affordable_s: float,
) -> Iterator[Workload]:
    """Yield workloads from the step that was asked for, or is affordable, to the shortest."""
    assert settings.slo is not None
    step_s = min(settings.step_s, max(MIN_STEP_S, affordable_s))
    while True:
        yield choose_workload(
            requests, settings.slo, unloaded, asked=settings.window, step_s=step_s
        )
        if step_s <= MIN_STEP_S:
            return
        step_s = max(MIN_STEP_S, step_s * SHORTER)


def _taken_s(
    workload: Workload, settings: SweepSettings, twin: StoredTwin, cap: int, hit_share: float
) -> float:
    """Return how long a cap takes for the windows, to the last token: at most, as a replay ends
    earlier when nothing can be met any more."""
    found_s = 0.0
    for window in workload.windows:
        traffic = traffic_of(
            workload.sent_in(window),
            hash_block_size=settings.trace_block_size,
            hit_share=hit_share,
            kv_tokens=twin.shape.kv_tokens,
        )
        took_s = window.run_in_s + window.length_s
        if len(traffic):
            first_s = float(traffic.arrival_s[0]) - (window.start_s - window.run_in_s)
            replay = simulate(traffic, twin.law, twin.shape, max_num_seqs=cap)
            took_s = max(took_s, first_s + replay.duration_s)
        found_s += took_s
    return found_s
