"""Replays of several approaches → what each of them does, and how they compare. Pure.

Definitions: docs/more.md.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.replay.device_use import IDLE, device_use
from tuner.replay.measure import Spread, measure, spread
from tuner.replay.records import Floats, Replay, Requests, e2el_s
from tuner.runs.compare.ways import LEVELS, Approach, mean_in_flight
from tuner.runs.events import Replayed, TrialEnded
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.traffic.slo import Slo
from tuner.twin.uncertainty import t_quantile

BIN_S = 0.1
"""Stretch of time in which it is asked whether the engine was busy. It shows a request's gap
between two others."""

NEVER_S = 1e12
"""Longer than any wait."""

LEAST_FREEDOM = 2
"""Degrees of freedom below which the noise is not known."""


@dataclass(frozen=True, slots=True)
class Made:
    """A replay that was made, or that failed."""

    approach: str
    block: int
    load: str
    replay: Replay | None
    error: str
    """Why there is none, and the cure."""

    @property
    def title(self) -> str:
        return f"{self.approach}, {self.load}"


def made_in(journal: Journal) -> list[Made]:
    """Return all that a comparison has made so far, in order."""
    files = {event.trial: event for event in journal.of(Replayed)}
    return [
        Made(
            begun.approach,
            int(begun.purpose.rpartition(" ")[2]),
            begun.load,
            journal.replay(files[number]) if ended.failed is None else None,
            f"{ended.failed}. {ended.hint}",
        )
        for number, (begun, ended) in enumerate(
            zip(Evidence(journal).begun(), journal.of(TrialEnded), strict=False)
        )
    ]


def tables_of(
    journal: Journal, levels: Sequence[str], approaches: Sequence[Approach], slo: Slo | None
) -> list["ComparisonTable"]:
    """Return one table for each load."""
    made = made_in(journal)
    tables = []
    for level in levels:
        blocks: dict[str, dict[int, Replay]] = {one.name: {} for one in approaches}
        for one in made:
            if one.replay is not None and one.load == level:
                blocks[one.approach][one.block] = one.replay
        rows = _rows(approaches, blocks, made, slo)
        tables.append(ComparisonTable(level, LEVELS[level], rows))
    return tables


def _rows(
    approaches: Sequence[Approach],
    blocks: Mapping[str, Mapping[int, Replay]],
    made: Sequence[Made],
    slo: Slo | None,
) -> tuple["ComparisonRow", ...]:
    numbers = {name: numbers_of(list(seen.values()), slo) for name, seen in blocks.items() if seen}
    against_first = compared(blocks, approaches[0].name)
    against_untuned = compared(blocks, "untuned")
    rows = []
    for one in approaches:
        seen, notes = numbers.get(one.name), tuple[str, ...]()
        if seen is not None:
            notes = notes_on(seen, alone=numbers.get("worker") if one.workers > 1 else None)
            if one.name in {"tuned", "profile"}:
                notes += note_against(against_untuned[one.name], "untuned")
        caps = [replay.max_num_seqs for replay in blocks[one.name].values()]
        errors = (each.error for each in made if each.approach == one.name and not each.replay)
        rows.append(
            ComparisonRow(
                approach=one.name,
                title=one.title,
                max_num_seqs=caps[0] if caps else None,
                numbers=seen,
                ratios=against_first[one.name],
                notes=notes,
                errors=tuple(dict.fromkeys(errors)),
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number over the baseline's, with its 95 % interval; None where that cannot be told."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Share of time in which the engine had an iteration in hand, over stretches of 0.1 s; of a GPU
    its own utilization."""

    mean: float
    sd: float
    idle_share: float
    """Share of the stretches in which it was less than 5 % busy."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one approach with one traffic, its repeats together. Times in seconds.

    Requests are counted from the first one due until the last was, the run-in too, so that what was
    served is a part of what was offered. Latencies are those of the requests after the run-in.
    """

    blocks: int
    requests: int
    completed: int
    """Sooner or later."""

    unfinished: int
    """Still waiting or running when the replay was ended."""

    failed: int
    failures: tuple[str, ...]
    offered_rps: float
    """Without what its clients gave up, as in the trace."""

    requests_per_s: float
    """Finished before the last one was due."""

    output_tokens_per_s: float
    in_flight_mean: float
    """After the run-in, over time."""

    attainment: float | None
    """Share of the requests after the run-in that met the SLO; None without an SLO."""

    e2el_p95_s: float | None
    e2el_at_least: bool
    """Whether the truth is longer, because of requests that were unfinished or failed."""

    tpot_s: Spread | None
    """Of the finished requests; the engine's own where a reply came whole."""

    busy: Busy | None
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
    """Of ``requests_per_s``, ``e2el_p95`` and ``tpot_p95`` against the first approach; one that
    cannot be told is left out."""

    notes: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    max_num_seqs: int
    source: str
    """Where it comes from: a profile or an option."""


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """All approaches with one traffic."""

    load: str
    in_flight: int | None
    rows: tuple[ComparisonRow, ...]


def numbers_of(replays: Sequence[Replay], slo: Slo | None = None) -> Numbers:
    """Return what these replays of one traffic by one approach say together."""
    sent = np.concatenate([replay.requests for replay in replays])
    done = sent[sent["outcome"] == "ok"]  # the run-in too: of the engine's speed
    whole = done[(done["gaps"] == 0) & (done["output_tokens"] > 1)]
    spans_s = [replay.scored_from_s + replay.window_s for replay in replays]
    ends_s = np.repeat(spans_s, [len(replay.requests) for replay in replays])
    served = sent[(sent["outcome"] == "ok") & (sent["end_s"] < ends_s)]
    outcomes = Counter(sent["outcome"].tolist())
    e2el_p95_s, e2el_at_least = _e2el(replays)
    held_s = _known(whole["last_s"] - whole["engine_last_s"])
    return Numbers(
        blocks=len(replays),
        requests=len(sent),
        completed=outcomes["ok"],
        unfinished=outcomes["cut"],
        failed=outcomes["failed"],
        failures=tuple(dict.fromkeys(why for replay in replays for why in replay.failures)),
        offered_rps=(len(sent) - outcomes["aborted"]) / sum(spans_s),
        requests_per_s=len(served) / sum(spans_s),
        output_tokens_per_s=int(served["output_tokens"].sum()) / sum(spans_s),
        in_flight_mean=sum(map(_in_flight_s, replays)) / sum(one.window_s for one in replays),
        attainment=None if slo is None else measure(replays, slo).attainment,
        e2el_p95_s=e2el_p95_s,
        e2el_at_least=e2el_at_least,
        tpot_s=spread(_known(_tpots_s(done))),
        busy=_busy(replays),
        held_mean_s=float(held_s.mean()) if len(held_s) else None,
    )


def _tpots_s(sent: Requests) -> Floats:
    """Return times per token as clients saw them; the engine's own where replies came whole."""
    decoded_s = sent["engine_last_s"] - sent["engine_first_s"]
    tokens = np.where(sent["output_tokens"] > 1, sent["output_tokens"] - 1.0, np.nan)
    found: Floats = np.where(np.isnan(sent["tpot_s"]), decoded_s / tokens, sent["tpot_s"])
    return found


def _known(values: Floats) -> Floats:
    known: Floats = values[~np.isnan(values)]
    return known


def _e2el(replays: Sequence[Replay]) -> tuple[float | None, bool]:
    """Return the p95 E2EL after the run-in, and whether it is a lower bound.

    What was unfinished had waited at least until then, and what failed at least until the end.
    """
    waits_s, is_known = [np.zeros(0)], [np.zeros(0, bool)]
    for replay in replays:
        sent = replay.requests
        sent = sent[sent["scored"] & (sent["outcome"] != "aborted")]
        has_failed = sent["outcome"] == "failed"
        end_s = np.where(has_failed, replay.elapsed_s, sent["end_s"])
        known = ~np.isnan(e2el_s(sent)) & ~has_failed
        waits_s.append(np.where(known, e2el_s(sent), np.maximum(0.0, end_s - sent["planned_s"])))
        is_known.append(known)
    seconds, known = np.concatenate(waits_s), np.concatenate(is_known)
    if not len(seconds):
        return None, False
    p95_s = float(np.percentile(seconds, 95))
    longer_s = float(np.percentile(np.where(known, seconds, NEVER_S), 95))
    return p95_s, longer_s > p95_s + 1e-9


def _in_flight_s(replay: Replay) -> float:
    """Return the seconds that requests were in flight after the run-in."""
    sent, from_s = replay.requests, replay.scored_from_s
    to_s = from_s + replay.window_s
    in_flight = mean_in_flight(sent["planned_s"], sent["end_s"], from_s=from_s, to_s=to_s)
    return replay.window_s * in_flight


def _busy(replays: Sequence[Replay]) -> Busy | None:
    device = device_use([replay.device for replay in replays])
    if device and device.memory_peak_bytes is not None and device.utilisation_mean is not None:
        sd, idle = device.utilisation_sd or 0.0, device.idle_share or 0.0
        return Busy(device.utilisation_mean, sd, idle)
    shares = np.concatenate([_busy_shares(replay) for replay in replays])
    if not len(shares):
        return None
    return Busy(float(shares.mean()), float(shares.std()), float(np.mean(shares < IDLE)))


def _busy_shares(replay: Replay) -> NDArray[np.float64]:
    """Return the share of each stretch of the window in which some iteration ran; several engines'
    iterations may overlap."""
    log = np.sort(replay.iterations, order="start_s")
    begin_s = log["start_s"]
    end_s = np.maximum.accumulate(begin_s + log["duration_s"])
    begin_s = np.maximum(begin_s, np.concatenate(([-np.inf], end_s[:-1])))
    busy_s = np.concatenate(([0.0], np.cumsum(np.maximum(0.0, end_s - begin_s))))
    edges = replay.scored_from_s + BIN_S * np.arange(int(replay.window_s / BIN_S + 1e-9) + 1)
    if not len(begin_s):
        return np.zeros(len(edges) - 1)
    # time alternates between idle and busy: at begin_s[i] busy_s[i] have passed, at end_s[i] more
    times = np.stack((begin_s, end_s), axis=1).ravel()
    so_far = np.stack((busy_s[:-1], busy_s[1:]), axis=1).ravel()
    return np.diff(np.interp(edges, times, so_far)) / BIN_S


def compared(
    blocks: Mapping[str, Mapping[int, Replay]], baseline: str
) -> dict[str, dict[str, Ratio]]:
    """Return approach → name of a number → its ratio to the baseline's.

    A tail that is only known to be longer has no ratio.
    """
    numbers = {
        name: {block: numbers_of([replay]) for block, replay in seen.items()}
        for name, seen in blocks.items()
    }
    of_number: dict[str, Callable[[Numbers], float | None]] = {
        "requests_per_s": lambda one: one.requests_per_s,
        "e2el_p95": lambda one: None if one.e2el_at_least else one.e2el_p95_s,
        "tpot_p95": lambda one: None if one.tpot_s is None else one.tpot_s.p95,
    }
    result: dict[str, dict[str, Ratio]] = {name: {} for name in blocks}
    for what, value_of in of_number.items():
        values = {
            name: {block: value_of(one) for block, one in seen.items()}
            for name, seen in numbers.items()
        }
        known = {
            name: {block: value for block, value in seen.items() if value is not None}
            for name, seen in values.items()
            if None not in seen.values()
        }
        for name, ratio in ratios(known, baseline).items():
            result[name][what] = ratio
    return result


def ratios(values: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Ratio]:
    """Return approach → its number over the baseline's, the geometric mean of the blocks' ratios.

    Blocks and approaches are taken out of the logarithms (two-way layout); the noise s of what is
    left is pooled over all of them, and the interval of a ratio over B blocks reaches
    t·sqrt(2 s²/B), by Student's t. Empty where the baseline has nothing.
    """
    base = values.get(baseline, {})
    s2, freedom = _noise(values)
    found = {}
    for name, blocks in values.items():
        pairs = [(blocks[block], base[block]) for block in sorted(blocks.keys() & base.keys())]
        if not sum(other for _, other in pairs):
            continue
        if not all(one > 0 and other > 0 for one, other in pairs):
            total = sum(one for one, _ in pairs) / sum(other for _, other in pairs)
            found[name] = Ratio(total, None, None)
            continue
        middle = sum(math.log(one / other) for one, other in pairs) / len(pairs)
        low = high = None
        if name != baseline and freedom >= LEAST_FREEDOM:
            reach = t_quantile(freedom) * math.sqrt(2 * s2 / len(pairs))
            low, high = math.exp(middle - reach), math.exp(middle + reach)
        found[name] = Ratio(math.exp(middle), low, high)
    return found


def _noise(values: Mapping[str, Mapping[int, float]]) -> tuple[float, int]:
    """Return the variance of the logarithms around approach and block, and its degrees of freedom.

    Cells may be missing.
    """
    cells = [
        (name, block, math.log(value))
        for name, blocks in values.items()
        for block, value in blocks.items()
        if value > 0
    ]
    if not cells:
        return 0.0, 0
    names, numbers = ({cell[i]: None for cell in cells} for i in (0, 1))
    rows = [
        [name == one for one in names] + [block == one for one in numbers]
        for name, block, _ in cells
    ]
    design, logs = np.array(rows, dtype=float), np.array([cell[2] for cell in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    freedom = len(logs) - int(rank)
    squares = float(((logs - design @ fitted) ** 2).sum())
    return (squares / freedom if freedom else 0.0), freedom


def note_against(found: Mapping[str, Ratio], title: str) -> tuple[str, ...]:
    """Return how an approach compares with another one, in words."""
    words = {"requests_per_s": "req/s", "e2el_p95": "p95 E2EL", "tpot_p95": "p95 TPOT"}
    parts = [f"{shown_ratio(found[what])} {word}" for what, word in words.items() if what in found]
    return (f"against {title}: {', '.join(parts)}",) if parts else ()


def shown_ratio(ratio: Ratio) -> str:
    """Return a ratio with its interval in a few characters: ``1.82x (1.64-2.01)``."""
    if ratio.low is None or ratio.high is None:
        return f"{shown_number(ratio.value)}x"
    return f"{shown_number(ratio.value)}x ({shown_number(ratio.low)}-{shown_number(ratio.high)})"


def shown_number(value: float) -> str:
    """Return three significant digits, of small numbers two after the point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def notes_on(one: Numbers, *, alone: Numbers | None) -> tuple[str, ...]:
    """Return what was seen of an approach; ``alone`` is one worker, where this is two of them."""
    notes = []
    if one.unfinished:
        notes.append(
            f"served {one.requests_per_s:.2f} of {one.offered_rps:.2f} req/s: "
            f"{one.unfinished} of {one.requests} unfinished at the end"
        )
    if one.failed:
        notes.append(f"{one.failed} of {one.requests} failed: {'; '.join(one.failures)}")
    if one.held_mean_s:
        notes.append(f"head of line: a reply waited {one.held_mean_s:.2g} s for its batch")
    if alone is not None and one.tpot_s and alone.tpot_s:
        notes.append(
            f"contention: a token took {one.tpot_s.p50 / alone.tpot_s.p50:.2f} times as long as "
            "with one worker"
        )
    return tuple(notes)
