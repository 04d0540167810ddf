"""What a sweep replays: the requests that fit the engine, their SLO, and the window. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.errors import TraceError, UsageError
from tuner.knee import HOPELESS, RULED_OUT_REPLAY_S, doubling, littles_bound
from tuner.slo import Slo, Unloaded, derive_slo
from tuner.trace import TraceRequest
from tuner.traffic import busiest_window
from tuner.window import Window, choose_window, in_window

MIN_WINDOW_S = 5.0
BLOCKS_PER_CAP = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic of one sweep and what it must meet."""

    slo: Slo
    unloaded: Unloaded
    window: Window
    requests: tuple[TraceRequest, ...]
    """Those of the window and its run-in, in order of arrival."""

    @property
    def replay_s(self) -> float:
        """How long one replay takes at least."""
        return self.window.run_in_s + self.window.length_s

    def bound(self, cap: int) -> float:
        """Return the most that ``cap`` can attain of these requests, by Little's law."""
        return littles_bound(
            self.requests, self.unloaded, self.slo, cap=cap, scored_from_s=self.window.start_s
        )

    def cost_s(self, *, ceiling: int, confirming_replays: int) -> float:
        """Return about how long a whole sweep replays, in seconds of engine time."""
        caps = doubling(ceiling)
        hopeless = sum(self.bound(cap) < HOPELESS for cap in caps)
        whole = BLOCKS_PER_CAP * (len(caps) - hopeless) + confirming_replays
        return (hopeless + 1) * RULED_OUT_REPLAY_S + whole * self.replay_s


def keep_what_fits(
    requests: Sequence[TraceRequest], *, max_model_len: int
) -> tuple[list[TraceRequest], int]:
    """Return the requests that the engine can take and how many it cannot.

    Nothing is clipped: clipped it would be other traffic. Raises TraceError when nothing is left.
    """
    kept = [
        one for one in requests if one.input_length + max(1, one.output_length) <= max_model_len
    ]
    if not kept:
        raise TraceError(
            f"every request is longer than max_model_len={max_model_len}",
            hint="Use a model with a longer context, or raise it with --set max_model_len=N.",
        )
    return kept, len(requests) - len(kept)


def slo_for(requests: Sequence[TraceRequest], unloaded: Unloaded) -> Slo:
    """Return the derived SLO of these requests."""
    return derive_slo(unloaded, [(one.input_length, max(1, one.output_length)) for one in requests])


def choose_workload(  # noqa: PLR0913 - what there is, what is asked, what it may cost
    requests: Sequence[TraceRequest],
    slo: Slo,
    unloaded: Unloaded,
    *,
    window: str,
    step_s: float,
    ceiling: int,
    confirming_replays: int,
    replay_budget_s: float,
) -> Workload:
    """Return the workload; a ``busiest`` window is as long as ``step_s`` and the budget allow.

    Raises UsageError when the budget does not allow the shortest sweep, TraceError when nothing
    arrives in the window.
    """
    workload = _workload(requests, slo, unloaded, window, step_s)
    cost_s = workload.cost_s(ceiling=ceiling, confirming_replays=confirming_replays)
    if window == "busiest" and cost_s > replay_budget_s:
        length_s = workload.window.length_s * max(0.0, replay_budget_s) / cost_s
        workload = _workload(requests, slo, unloaded, window, max(MIN_WINDOW_S, length_s))
        cost_s = workload.cost_s(ceiling=ceiling, confirming_replays=confirming_replays)
        if length_s < MIN_WINDOW_S and cost_s > replay_budget_s:
            raise UsageError(
                f"--budget leaves {max(0.0, replay_budget_s):.0f}s for replays beside the engine "
                f"starts, the shortest sweep needs about {cost_s:.0f}s",
                hint="Give a larger --budget, or a lower --ceiling.",
            )
    return workload


def workload_in(
    requests: Sequence[TraceRequest], slo: Slo, unloaded: Unloaded, window: Window
) -> Workload:
    """Return the workload of a window. Raises TraceError when no request arrives in it."""
    chosen = in_window(requests, window)
    if not any(one.arrival_s >= window.start_s for one in chosen):
        raise TraceError(f"window {window}: nothing to replay", hint="Choose another --window.")
    return Workload(slo, unloaded, window, tuple(chosen))


def _workload(
    requests: Sequence[TraceRequest], slo: Slo, unloaded: Unloaded, window: str, step_s: float
) -> Workload:
    chosen = choose_window(requests, window, length_s=step_s, busiest=busiest_window)
    return workload_in(requests, slo, unloaded, chosen)
