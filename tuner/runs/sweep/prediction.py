"""The confirming replay as the twin foretells it before it begins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tuner.runs.evidence import Evidence
from tuner.runs.sweep.conclusion import Basis
from tuner.trace.trace import TraceRequest
from tuner.traffic.sampling import unseen_windows
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.twin.check import Foretold, PlannedWindow, foretell
from tuner.twin.draws import PRINTED
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import traffic_of


@dataclass(frozen=True, slots=True)
class ForetoldReplay:
    """The confirming replay as it was foretold; the journal keeps it from before its begin."""

    max_num_seqs: int
    windows: tuple[Window, ...]
    unseen: bool
    """Whether the ladder replayed none of them."""

    slo: Slo
    numbers: Mapping[str, Foretold]
    means: Sequence[tuple[float, float]]
    """Of each window the mean TTFT and TPOT in seconds."""

    def as_event(self) -> dict[str, Any]:
        """Return what the journal keeps."""
        return asdict(self)

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> "ForetoldReplay":
        """Return what the journal kept. Raises KeyError, TypeError for anything else."""
        return cls(
            max_num_seqs=event["max_num_seqs"],
            windows=tuple(Window(**one) for one in event["windows"]),
            unseen=event["unseen"],
            slo=Slo(**event["slo"]),
            numbers={name: Foretold(**one) for name, one in event["numbers"].items()},
            means=[(ttft, tpot) for ttft, tpot in event["means"]],
        )


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
    return ForetoldReplay(cap, windows, unseen, workload.slo, numbers, means)


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
    for event in evidence.journal.of("foretold"):
        if event["max_num_seqs"] == cap:
            return ForetoldReplay.of_event(event)
    return None


def foretold_numbers(
    basis: Basis, view: Forecast, windows: Sequence[Window], cap: int
) -> tuple[dict[str, Foretold], list[tuple[float, float]]]:
    """Return what the twin says of a replay of these windows, and of each the mean TTFT and TPOT in
    seconds."""
    workload, block_size = basis.workload, basis.settings.trace_block_size
    planned = [planned_window(one, workload.sent_in(one), view, block_size) for one in windows]
    laws = view.fitted.draws(PRINTED)
    return foretell(planned, laws, view.machine, view.shape, workload.slo, max_num_seqs=cap)


def planned_window(
    window: Window, sent: Sequence[TraceRequest], view: Forecast, hash_block_size: int
) -> PlannedWindow:
    """Return a window as it is sent, for the twin to foretell."""
    traffic = traffic_of(
        sent,
        hash_block_size=hash_block_size,
        hit_share=view.hit_share,
        kv_tokens=view.shape.kv_tokens,
    )
    aborted_s = [one.arrival_s for one in sent if one.status == "aborted"]
    counted = (traffic.arrival_s >= window.start_s) & ~np.isin(traffic.arrival_s, aborted_s)
    span_s = (window.start_s, window.start_s + window.length_s)
    return PlannedWindow(traffic, counted, span_s, window.weight)
