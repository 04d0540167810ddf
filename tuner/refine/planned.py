"""What a trial of a refinement replays: windows that the budget has time for. Pure.

An overloaded engine takes longer for a window than the window is, several times as long if need be:
what the knee takes for it the profile's twin tells before anything starts.
"""

import math
from collections.abc import Sequence

from tuner.errors import UsageError
from tuner.profile_numbers import Twin
from tuner.settings import SweepSettings
from tuner.slo import Unloaded
from tuner.trace import TraceRequest
from tuner.twin.simulation import simulate, traffic_of
from tuner.twin.store import restored
from tuner.workload import MIN_STEP_S, Workload, choose_workload

SHORTER = 0.9
"""At most this, of a step that takes too long, is tried next."""


def planned(  # noqa: PLR0913 - what there is, what is asked, what it may cost
    requests: Sequence[TraceRequest],
    settings: SweepSettings,
    unloaded: Unloaded,
    twin: Twin | None,
    *,
    cap: int,
    steps: int,
    needed: int,
    starts_s: float,
) -> tuple[Workload, float]:
    """Return what each of so many steps replays, and how long one takes at the knee's cap.

    Raises UsageError when the budget has no time for those that are ``needed``, TraceError when
    nothing can be replayed.
    """
    assert settings.slo is not None
    affordable_s = (settings.budget_s - starts_s) / steps
    if affordable_s < MIN_STEP_S:
        raise _too_small(settings, steps, starts_s, MIN_STEP_S)
    step_s = min(settings.step_s, affordable_s)
    while True:
        workload = choose_workload(
            requests,
            settings.slo,
            unloaded,
            asked=settings.window,
            step_s=step_s,
            steps=steps,
            budget_s=settings.budget_s,
            starts_s=starts_s,
        )
        took_s = max(step_s, _taken_s(workload, settings, twin, cap) if twin else 0.0)
        if step_s <= MIN_STEP_S and needed * took_s + starts_s > settings.budget_s:
            raise _too_small(settings, needed, starts_s, took_s)
        if took_s <= affordable_s or step_s <= MIN_STEP_S:
            return workload, took_s
        step_s = max(MIN_STEP_S, step_s * min(SHORTER, affordable_s / took_s))


def _taken_s(workload: Workload, settings: SweepSettings, section: Twin, cap: int) -> float:
    """Return how long a cap takes for the windows, to the last token."""
    twin, found_s = restored(section, source="the profile"), 0.0
    for window in workload.windows:
        traffic = traffic_of(
            workload.sent_in(window),
            hash_block_size=settings.trace_block_size,
            hit_share=section.hit_share,
        )
        replay = simulate(traffic, twin.law, twin.shape, max_num_seqs=cap)
        found_s += max(window.run_in_s + window.length_s, replay.duration_s)
    return found_s


def _too_small(settings: SweepSettings, steps: int, starts_s: float, step_s: float) -> UsageError:
    return UsageError(
        f"--budget {settings.budget_s:.0f}s is too small: engine starts take about "
        f"{starts_s:.0f}s, {steps} replays {steps * step_s:.0f}s at least",
        hint=f"Give at least --budget {math.ceil(steps * step_s + starts_s)}s.",
    )
