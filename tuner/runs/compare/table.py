"""Replays of several approaches → what each of them does, and how they compare. Pure.

Definitions: docs/more.md.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.replay.numbers import Spread, measure, spread
from tuner.replay.records import Floats, Replay, e2el_s
from tuner.replay.soundness import device_use
from tuner.runs.compare.ways import LEVELS, Approach
from tuner.runs.journal import Failed, Journal, Tried
from tuner.runs.pairs import Ratio, log_ratio
from tuner.traffic.slo import Slo

NEVER_S = 1e12
"""Longer than any wait."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one approach with one traffic, its repeats together. Times in seconds.

    Requests are counted from the first one due until the last was, the run-in too, so that what was
    served is a part of what was offered. Latencies are those of the requests after the run-in.
    """

    requests: int
    unfinished: int
    """Still waiting or running when the replay was ended."""

    failed: int
    offered_rps: float
    """Without what its clients gave up, as in the trace."""

    requests_per_s: float
    """Finished before the last one was due."""

    attainment: float | None
    """Share of the requests after the run-in that met the SLO; None without an SLO."""

    e2el_p95_s: float | None
    e2el_at_least: bool
    """Whether the truth is longer, because of requests that were unfinished or failed."""

    tpot_s: Spread | None
    """Of the finished requests; the engine's own where a reply came whole."""

    busy: float | None
    """Utilization of the GPU, or of the CPU cores; None where nothing was read."""

    held_mean_s: float | None
    """How long a finished request waited for its batch."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One line of the table."""

    approach: str
    title: str
    max_num_seqs: int | None
    """None where it never started."""

    numbers: Numbers | None
    """None where nothing was measured."""

    ratios: Mapping[str, Ratio]
    """Of COMPARED against the first approach; one that is not known is left out."""

    notes: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """All approaches with one traffic."""

    load: str
    in_flight: int | None
    rows: tuple[ComparisonRow, ...]


COMPARED: Mapping[str, tuple[str, Callable[[Numbers], float | None]]] = {
    "requests_per_s": ("req/s", lambda n: n.requests_per_s),
    "e2el_p95": ("p95 E2EL", lambda n: None if n.e2el_at_least else n.e2el_p95_s),
    "tpot_p95": ("p95 TPOT", lambda n: None if n.tpot_s is None else n.tpot_s.p95),
}
"""What is compared, and its name in words. A tail that is only known to be longer has no ratio."""

Blocks = Mapping[int, Replay]
"""Number of a block → its replay."""


def block_of(trial: Tried) -> int:
    return int(trial.purpose.rpartition(" ")[2])


def table_of(
    journal: Journal, load: str, approaches: Sequence[Approach], slo: Slo | None
) -> ComparisonTable:
    """Return the table of one load."""
    blocks: dict[str, dict[int, Replay]] = {each.name: {} for each in approaches}
    for trial in journal.made():
        if trial.load == load:
            blocks[trial.approach][block_of(trial)] = journal.replay(trial)
    rows = []
    for each in approaches:
        own = blocks[each.name]
        replays = [*own.values()]
        seen = numbers_of(replays, slo) if own else None
        notes = [] if seen is None else notes_on(seen, replays)
        if each.name == "tuned" and (against := compared(own, blocks.get("untuned", {}))):
            words = ", ".join(f"{shown(r)} {COMPARED[name][0]}" for name, r in against.items())
            notes.append(f"against untuned: {words}")
        failures = (e for e in journal.of(Failed) if e.approach == each.name)
        errors = dict.fromkeys(f"{failed.why}. {failed.hint}" for failed in failures)
        rows.append(
            ComparisonRow(
                approach=each.name,
                title=each.title,
                max_num_seqs=next((replay.max_num_seqs for replay in replays), None),
                numbers=seen,
                ratios=compared(own, blocks[approaches[0].name]),
                notes=tuple(notes),
                errors=tuple(errors),
            )
        )
    return ComparisonTable(load, LEVELS[load], tuple(rows))


def compared(blocks: Blocks, baseline: Blocks) -> dict[str, Ratio]:
    """Return the ratios of an approach to the baseline, over the blocks that both have."""
    shared = sorted(blocks.keys() & baseline.keys())
    sides = [[numbers_of([side[at]]) for at in shared] for side in (blocks, baseline)]
    ratios = dict[str, Ratio]()
    for name, (_, value_of) in COMPARED.items():
        above, below = (np.array([value_of(each) for each in side], float) for side in sides)
        if (ratio := log_ratio(above, below)) is not None:
            ratios[name] = Ratio(1.0) if blocks is baseline else ratio
    return ratios


def shown(ratio: Ratio) -> str:
    """Return a ratio in a few characters.

    >>> shown(Ratio(1.816, 1.641, 2.01)), shown(Ratio(12.5))
    ('1.82x (1.64-2.01)', '12.5x')
    """
    known = [each for each in (ratio.value, ratio.low, ratio.high) if each is not None]
    value, *ends = (f"{each:.2f}" if each < 10 else f"{each:.3g}" for each in known)
    return f"{value}x ({'-'.join(ends)})" if ends else f"{value}x"


def numbers_of(replays: Sequence[Replay], slo: Slo | None = None) -> Numbers:
    """Return what these replays of one traffic by one approach come to together."""
    sent = np.concatenate([replay.requests for replay in replays])

    def of_replays(name: str) -> Floats:
        """Return a number of its replay for each request."""
        return np.concatenate([np.full(len(r.requests), getattr(r, name)) for r in replays])

    from_s, elapsed_s, window_s = map(of_replays, ("scored_from_s", "elapsed_s", "window_s"))
    spans_s = sum(replay.scored_from_s + replay.window_s for replay in replays)
    is_done, outcomes = sent["outcome"] == "ok", Counter(sent["outcome"].tolist())
    served = is_done & (sent["end_s"] < from_s + window_s)
    came_whole = is_done & (sent["gaps"] == 0) & (sent["output_tokens"] > 1)
    held_s = (sent["last_s"] - sent["engine_last_s"])[came_whole]
    held_s = held_s[~np.isnan(held_s)]

    # what failed waits to the end, what was unfinished waited at least until then
    end_s = np.where(sent["outcome"] == "failed", elapsed_s, sent["end_s"])
    waited_s = np.where(is_done, e2el_s(sent), np.maximum(0.0, end_s - sent["planned_s"]))
    counted = sent["scored"] & (sent["outcome"] != "aborted")
    tail_s, longer_s = (
        float(np.percentile(each[counted], 95)) if counted.any() else None
        for each in (waited_s, np.where(is_done, waited_s, NEVER_S))
    )

    # as clients saw them; the engine's own where replies came whole
    later = np.where(sent["output_tokens"] > 1, sent["output_tokens"] - 1.0, np.nan)
    own_s = (sent["engine_last_s"] - sent["engine_first_s"]) / later
    tpots_s = np.where(np.isnan(sent["tpot_s"]), own_s, sent["tpot_s"])[is_done]
    return Numbers(
        requests=len(sent),
        unfinished=outcomes["cut"],
        failed=outcomes["failed"],
        offered_rps=(len(sent) - outcomes["aborted"]) / spans_s,
        requests_per_s=float(served.sum()) / spans_s,
        attainment=None if slo is None else measure(replays, slo).attainment,
        e2el_p95_s=tail_s,
        e2el_at_least=tail_s is not None and longer_s is not None and longer_s > tail_s + 1e-9,
        tpot_s=spread(tpots_s),
        busy=device_use([replay.device for replay in replays]).get("utilisation"),
        held_mean_s=float(held_s.mean()) if len(held_s) else None,
    )


def notes_on(numbers: Numbers, replays: Sequence[Replay]) -> list[str]:
    """Return what was seen of an approach."""
    notes = []
    if numbers.unfinished:
        notes.append(
            f"served {numbers.requests_per_s:.2f} of {numbers.offered_rps:.2f} req/s: "
            f"{numbers.unfinished} of {numbers.requests} unfinished at the end"
        )
    if numbers.failed:
        causes = "; ".join(dict.fromkeys(why for replay in replays for why in replay.failures))
        notes.append(f"{numbers.failed} of {numbers.requests} failed: {causes}")
    if numbers.held_mean_s:
        notes.append(f"head of line: a reply waited {numbers.held_mean_s:.2g} s for its batch")
    return notes
