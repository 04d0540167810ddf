"""Foretells the confirming replay before it begins, and holds it against what was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.runs.evidence import Evidence
from tuner.runs.outcome import CheckRecord, Conclusion
from tuner.trace.trace import TraceRequest
from tuner.traffic.sampling import unseen_windows
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.check import (
    Check,
    Foretold,
    Observed,
    PlannedWindow,
    check_at_own_speed,
    check_foretold,
    foretell,
)
from tuner.twin.draws import PRINTED, flicker_of
from tuner.twin.forecast import Forecast, delays_s
from tuner.twin.front_end import FrontEnd
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


def foretold_replay(
    evidence: Evidence, workload: Workload, view: Forecast, cap: int, *, hash_block_size: int
) -> ForetoldReplay:
    """Choose what the confirming engine replays, windows that the ladder did not see where there
    are any, and foretell it."""
    windows, unseen = workload.windows, True
    if evidence.rungs():
        others = unseen_windows(workload.requests, workload.part, windows)
        windows, unseen = others or windows, others is not None
    numbers, means = _foretold(view, workload, windows, cap, hash_block_size, workload.slo)
    return ForetoldReplay(cap, windows, unseen, workload.slo, numbers, means)


def foretold_in(evidence: Evidence, cap: int) -> ForetoldReplay | None:
    """Return what was foretold of the replay at a cap; None where nothing was."""
    for event in evidence.journal.of("foretold"):
        if event["max_num_seqs"] == cap:
            return ForetoldReplay.of_event(event)
    return None


def confirming_windows(evidence: Evidence, cap: int) -> list[Observed]:
    """Return what was replayed to confirm a cap."""
    return [one for one in evidence.observed(confirming=True) if one.max_num_seqs == cap]


def record_of(
    conclusion: Conclusion,
    front_end: FrontEnd | None,
    evidence: Evidence,
    workload: Workload,
    *,
    hash_block_size: int,
) -> CheckRecord | None:
    """Return what came of the confirming replay; None without a replay or without a twin.
    ``front_end`` is what its requests came through."""
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    windows = confirming_windows(evidence, cap)
    if view is None or not windows:
        return None
    law, shape = view.fitted.law, view.shape
    by_speed = check_at_own_speed(windows, law, shape, workload.slo, front_end=front_end)
    said = foretold_in(evidence, cap)
    if said is None or len(windows) < len(said.windows):
        return CheckRecord(unseen=False, foretold=Check(()), at_own_speed=by_speed)
    numbers = said.numbers
    if said.slo != workload.slo:  # of another SLO than that of the run only attainment is another
        numbers, _ = _foretold(view, workload, said.windows, cap, hash_block_size, workload.slo)
    errors = _errors_of(windows, said.means) if said.unseen else ((), ())
    return CheckRecord(
        said.unseen, check_foretold(numbers, windows, workload.slo), by_speed, *errors
    )


def _errors_of(
    windows: Sequence[Observed], means: Sequence[tuple[float, float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return log(measured / predicted) of the mean TTFT and TPOT of each window, from the predicted
    means in seconds."""
    pairs = list(zip(windows, means, strict=True))
    return (
        tuple(_log_ratio(one.ttft_s[one.counted()], ttft) for one, (ttft, _) in pairs),
        tuple(_log_ratio(one.tpot_s[one.counted()], tpot) for one, (_, tpot) in pairs),
    )


def _log_ratio(measured_s: Floats, predicted_s: float) -> float:
    known_s = measured_s[~np.isnan(measured_s)]
    mean_s = float(known_s.mean()) if len(known_s) else math.nan
    return math.log(mean_s / predicted_s) if predicted_s > 0 and mean_s > 0 else 0.0


def with_record(
    view: Forecast,
    record: CheckRecord,
    front_end: FrontEnd | None,
    windows: Sequence[Observed],
) -> Forecast:
    """Return the twin that knows how far off it was in windows that it had not seen, and what
    stands before the engine.

    ``windows`` are those of the confirming replay. Behind a front end its engine shares its cores
    as the one to come does, so the flicker and the delays are taken from it.
    """
    machine = replace(
        view.machine,
        ttft_errors=record.ttft_errors,
        tpot_errors=record.tpot_errors,
        front_end=front_end,
    )
    whole = [one for one in windows if not one.cut]
    if front_end is not None and whole:
        law = view.fitted.law
        machine = replace(
            machine,
            flicker=flicker_of([one.iterations for one in whole], law),
            delays_s=delays_s(whole, law, view.shape, front_end=front_end),
        )
    return replace(view, machine=machine)


def _foretold(  # noqa: PLR0913, PLR0917 - what is asked of what
    view: Forecast,
    workload: Workload,
    windows: Sequence[Window],
    cap: int,
    hash_block_size: int,
    slo: Slo,
) -> tuple[dict[str, Foretold], list[tuple[float, float]]]:
    planned = [planned_window(one, workload.sent_in(one), view, hash_block_size) for one in windows]
    laws = view.fitted.draws(PRINTED, seed=0)
    return foretell(planned, laws, view.machine, view.shape, slo, max_num_seqs=cap)


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
