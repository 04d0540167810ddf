"""The confirming replay as the twin foretells it before it begins."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tuner.runs.events import ForetoldReplay
from tuner.runs.evidence import Evidence
from tuner.runs.sweep.conclusion import Basis
from tuner.trace.trace import TraceRequest
from tuner.traffic.sampling import unseen_windows
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.check import Foretold, PlannedWindow, foretell
from tuner.twin.draws import PRINTED
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import traffic_of

DRAIN_SHARE = 0.1
"""Of the time of a replay, for what is unfinished when the last request was sent."""

LEAST_WINDOW_S = 8.0
"""Less of a window, its run-in left out, confirms nothing."""


def foretold_replay(basis: Basis, view: Forecast, cap: int, *, most_s: float) -> ForetoldReplay:
    """Choose what the confirming engine replays in this time, windows that the ladder did not see
    where there are any, and foretell it."""
    workload = basis.workload
    windows, unseen = workload.windows, True
    if basis.evidence.rungs():
        others = unseen_windows(workload.requests, workload.part, windows)
        windows, unseen = others or windows, others is not None
    windows = tuple(_affordable(windows, (1 - DRAIN_SHARE) * most_s))
    numbers, means = foretold_numbers(basis, view, windows, cap) if windows else ({}, [])
    return ForetoldReplay(
        max_num_seqs=cap, windows=windows, unseen=unseen, slo=workload.slo, numbers=numbers,
        means=tuple(means),
    )  # fmt: skip


def _affordable(windows: Sequence[Window], most_s: float) -> Iterator[Window]:
    """Yield as much of these windows as there is time for, the last one shortened."""
    for one in windows:
        length_s = min(one.length_s, most_s - one.run_in_s)
        if length_s < min(one.length_s, LEAST_WINDOW_S):
            return
        yield replace(one, length_s=length_s)
        most_s -= one.run_in_s + length_s


def foretold_in(evidence: Evidence, cap: int) -> ForetoldReplay | None:
    """Return what was foretold of the replay at a cap; None where nothing was."""
    events = evidence.journal.of(ForetoldReplay)
    return next((one for one in events if one.max_num_seqs == cap), None)


def foretold_numbers(
    basis: Basis, view: Forecast, windows: Sequence[Window], cap: int
) -> tuple[dict[str, Foretold], list[tuple[float, float]]]:
    """Return what the twin says of a replay of these windows, and of each the mean TTFT and TPOT in
    seconds."""
    planned, laws = planned_for(view, basis, windows), view.fitted.draws(PRINTED)
    return foretell(planned, laws, view.machine, view.shape, basis.workload.slo, max_num_seqs=cap)


def planned_window(
    window: Window,
    sent: Sequence[TraceRequest],
    *,
    hash_block_size: int,
    hit_share: float,
    kv_tokens: int,
) -> PlannedWindow:
    """Return a window as it is sent, for the twin to foretell."""
    traffic = traffic_of(
        sent, hash_block_size=hash_block_size, hit_share=hit_share, kv_tokens=kv_tokens
    )
    aborted_s = [one.arrival_s for one in sent if one.status == "aborted"]
    counted = (traffic.arrival_s >= window.start_s) & ~np.isin(traffic.arrival_s, aborted_s)
    span_s = (window.start_s, window.start_s + window.length_s)
    return PlannedWindow(traffic, counted, span_s, window.weight)


def raised(workload: Workload, window: Window, load: float, seed: int) -> list[TraceRequest]:
    """Return what a window sends at so many times the load."""
    sent = workload.sent_in(window)
    return sent if load == 1.0 else scale_load(sent, load, seed=seed)


def planned_for(
    view: Forecast, basis: Basis, windows: Sequence[Window], load: float = 1.0
) -> list[PlannedWindow]:
    """Return windows as they are sent at so many times the load, for the twin to foretell."""
    workload, settings = basis.workload, basis.settings
    return [
        planned_window(
            window,
            raised(workload, window, load, settings.seed),
            hash_block_size=settings.trace_block_size,
            hit_share=view.hit_share,
            kv_tokens=view.shape.kv_tokens,
        )
        for window in windows
    ]
