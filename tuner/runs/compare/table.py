"""Replays of several approaches → what each of them does, and how they compare. Pure.

Definitions: docs/more.md.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.replay.device_use import IDLE, DeviceUse, device_use
from tuner.replay.measure import Spread, spread
from tuner.replay.records import Floats, Replay, Requests, e2el_s, queue_s, ttft_s
from tuner.runs.compare.traffic import Lengths, mean_in_flight
from tuner.twin.uncertainty import t_quantile

BIN_S = 0.1
"""Stretch of time in which it is asked whether the engine was busy. It shows a request's gap
between two others."""

NEVER_S = 1e12

FEW = 20
"""With fewer finished requests than these a ratio has no interval."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of one approach in one block, and the requests that it is of."""

    value: float
    finished: frozenset[int]
    """Rows of the requests; the same in every approach's replay of a block."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number over the baseline's, with its 95 % interval; None where that cannot be told."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Share of time in which the engine had an iteration in hand, over stretches of 0.1 s."""

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
    """What the failed ones were told, each text once."""

    aborted: int
    """Given up by their clients, as in the trace; neither offered nor served."""

    offered_rps: float
    requests_per_s: float
    """Finished before the last one was due."""

    output_tokens_per_s: float
    """Of these."""

    in_flight_mean: float
    """After the run-in, over time."""

    e2el_p95_s: float | None
    e2el_at_least: bool
    """Whether the truth is longer, because of requests that were unfinished or failed."""

    e2el_mean_s: float | None
    ttft_p95_s: float | None
    ttft_at_least: bool
    tpot_s: Spread | None
    """Of the finished requests."""

    busy: Busy | None
    held_mean_s: float | None
    queue_mean_s: float | None
    """These two of the finished requests."""

    device: DeviceUse | None


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
    """Of throughput (``requests_per_s``), ``e2el_p95`` and ``tpot_p95`` against the first approach;
    one that cannot be told is left out."""

    notes: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    max_num_seqs: int
    source: str
    """Where it comes from: a profile, an option, or a sweep."""


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """All approaches with one traffic."""

    load: str
    in_flight: int | None
    lengths: Lengths
    rows: tuple[ComparisonRow, ...]


def numbers_of(replays: Sequence[Replay]) -> Numbers:
    """Return what these replays of one traffic by one approach say together."""
    sent = np.concatenate([one.requests for one in replays])
    done = sent[sent["outcome"] == "ok"]  # the run-in too: of the engine's speed
    whole = done[(done["gaps"] == 0) & (done["output_tokens"] > 1)]
    span_s = sum(map(span_of, replays))
    served = np.concatenate([served_by(one) for one in replays])
    outcomes = Counter(sent["outcome"].tolist())
    e2el, e2el_at_least = _waits(replays, e2el_s)
    ttft, ttft_at_least = _waits(replays, ttft_s)
    return Numbers(
        blocks=len(replays),
        requests=len(sent),
        completed=outcomes["ok"],
        unfinished=outcomes["cut"],
        failed=outcomes["failed"],
        failures=tuple(dict.fromkeys(why for one in replays for why in one.failures)),
        aborted=outcomes["aborted"],
        offered_rps=(len(sent) - outcomes["aborted"]) / span_s,
        requests_per_s=len(served) / span_s,
        output_tokens_per_s=int(served["output_tokens"].sum()) / span_s,
        in_flight_mean=_in_flight(replays),
        e2el_p95_s=e2el.p95 if e2el else None,
        e2el_at_least=e2el_at_least,
        e2el_mean_s=e2el.mean if e2el else None,
        ttft_p95_s=ttft.p95 if ttft else None,
        ttft_at_least=ttft_at_least,
        tpot_s=spread(_known(_tpots_s(done))),
        busy=_busy(replays),
        held_mean_s=_mean(whole["last_s"] - whole["engine_last_s"]),
        queue_mean_s=_mean(queue_s(done)),
        device=device_use([replay.device for replay in replays]),
    )


def span_of(replay: Replay) -> float:
    """Return how long a replay sends, in seconds: its run-in and its window."""
    return replay.scored_from_s + replay.window_s


def served_by(replay: Replay) -> Requests:
    """Return the requests that were finished while it sent."""
    sent = replay.requests
    served: Requests = sent[(sent["outcome"] == "ok") & (sent["end_s"] < span_of(replay))]
    return served


def _waits(
    replays: Sequence[Replay], waits_of: Callable[[Requests], Floats]
) -> tuple[Spread | None, bool]:
    """Return the distribution of a wait after the run-in, and whether its p95 is a lower bound.

    What was unfinished had waited at least until then, and what failed at least until the end.
    """
    waits_s, is_over = [np.zeros(0)], [np.zeros(0, bool)]
    for replay in replays:
        sent = replay.requests
        sent = sent[sent["scored"] & (sent["outcome"] != "aborted")]
        has_failed = sent["outcome"] == "failed"
        end_s = np.where(has_failed, replay.elapsed_s, sent["end_s"])
        known = ~np.isnan(waits_of(sent)) & ~has_failed
        waits_s.append(np.where(known, waits_of(sent), np.maximum(0.0, end_s - sent["planned_s"])))
        is_over.append(known)
    seconds, known = np.concatenate(waits_s), np.concatenate(is_over)
    found, longer = spread(seconds), spread(np.where(known, seconds, NEVER_S))
    if found is None or longer is None:
        return None, False
    return found, longer.p95 > found.p95 + 1e-9


def _in_flight(replays: Sequence[Replay]) -> float:
    """Return how many requests were in flight after the run-in, by Little's law."""
    windows_s = sum(replay.window_s for replay in replays)
    held_s = sum(
        mean_in_flight(
            replay.requests["planned_s"],
            replay.requests["end_s"],
            from_s=replay.scored_from_s,
            to_s=span_of(replay),
        )
        * replay.window_s
        for replay in replays
    )
    return held_s / windows_s


def compared(
    blocks: Mapping[str, Mapping[int, Replay]], baseline: str
) -> dict[str, dict[str, Ratio]]:
    """Return approach → name of a number → its ratio to the baseline's.

    A tail that is only known to be longer has no ratio.
    """
    rates, e2els, tpots = ({name: dict[int, Sample]() for name in blocks} for _ in range(3))
    for name, replays in blocks.items():
        for block, replay in replays.items():
            one = numbers_of([replay])
            ended = frozenset(served_by(replay)["row"].tolist())
            rates[name][block] = Sample(one.requests_per_s, ended)
            if one.e2el_p95_s is not None and not one.e2el_at_least:
                e2els[name][block] = Sample(one.e2el_p95_s, ended)
            if one.tpot_s is not None:
                tpots[name][block] = Sample(one.tpot_s.p95, ended)
    found: dict[str, dict[str, Ratio]] = {name: {} for name in blocks}
    for what, samples in (("requests_per_s", rates), ("e2el_p95", e2els), ("tpot_p95", tpots)):
        whole = {name: seen for name, seen in samples.items() if len(seen) == len(blocks[name])}
        for name, ratio in ratios(whole, baseline, counted=what == "requests_per_s").items():
            found[name][what] = ratio
    return found


def _tpots_s(sent: Requests) -> Floats:
    """Return times per token as clients saw them; the engine's own where replies came whole."""
    decoded_s = sent["engine_last_s"] - sent["engine_first_s"]
    tokens = np.where(sent["output_tokens"] > 1, sent["output_tokens"] - 1.0, np.nan)
    seen_s: Floats = sent["tpot_s"]
    found: Floats = np.where(np.isnan(seen_s), decoded_s / tokens, seen_s)
    return found


def _known(values: Floats) -> Floats:
    known: Floats = values[~np.isnan(values)]
    return known


def _mean(values: Floats) -> float | None:
    known = _known(values)
    return float(known.mean()) if len(known) else None


def _busy(replays: Sequence[Replay]) -> Busy | None:
    shares = np.concatenate([_busy_shares(replay) for replay in replays])
    if not len(shares):
        return None
    return Busy(float(shares.mean()), float(shares.std()), float(np.mean(shares < IDLE)))


def _busy_shares(replay: Replay) -> NDArray[np.float64]:
    """Return the share of each stretch of the window in which some iteration ran; several engines'
    iterations may overlap."""
    begin_s = replay.iterations["start_s"]
    order = np.argsort(begin_s, kind="stable")
    begin_s = begin_s[order]
    end_s = np.maximum.accumulate(begin_s + replay.iterations["duration_s"][order])
    begin_s = np.maximum(begin_s, np.concatenate(([-np.inf], end_s[:-1])))
    busy_s = np.concatenate(([0.0], np.cumsum(np.maximum(0.0, end_s - begin_s))))
    edges = replay.scored_from_s + BIN_S * np.arange(int(replay.window_s / BIN_S + 1e-9) + 1)
    if not len(begin_s):
        return np.zeros(len(edges) - 1)
    # time alternates between idle and busy: at begin_s[i] busy_s[i] have passed, at end_s[i] more
    times = np.stack((begin_s, end_s), axis=1).ravel()
    so_far = np.stack((busy_s[:-1], busy_s[1:]), axis=1).ravel()
    return np.diff(np.interp(edges, times, so_far)) / BIN_S


def ratios(
    samples: Mapping[str, Mapping[int, Sample]], baseline: str, *, counted: bool = False
) -> dict[str, Ratio]:
    """Return approach → its number over the baseline's, the geometric mean of the blocks' ratios.

    Blocks and approaches are taken out of the logarithms (two-way layout); the noise s of what is
    left is pooled over all of them, and the interval of a ratio over B blocks reaches
    t·sqrt(2 s²/B), by Student's t. A count cannot be surer than counting allows: where the numbers
    are ``counted``, the variance is no less than that of a ratio of paired proportions,
    (requests that only one of the two finished) / (finished by one · by the other).

    Empty where the baseline has nothing.
    """
    base = samples.get(baseline, {})
    s2, freedom = _noise(samples)
    found = {}
    for name, blocks in samples.items():
        both = sorted(blocks.keys() & base.keys())
        total = sum(base[block].value for block in both)
        if total <= 0:
            continue
        pairs = [(blocks[block].value, base[block].value) for block in both]
        if not all(one > 0 and other > 0 for one, other in pairs):
            found[name] = Ratio(sum(one for one, _ in pairs) / total, None, None)
            continue
        middle = sum(math.log(one / other) for one, other in pairs) / len(pairs)
        low = high = None
        mine = {(block, row) for block in both for row in blocks[block].finished}
        its = {(block, row) for block in both for row in base[block].finished}
        if name != baseline and freedom >= 2 and min(len(mine), len(its)) >= FEW:
            variance = 2 * s2 / len(both)
            if counted:
                variance = max(variance, max(1, len(mine ^ its)) / (len(mine) * len(its)))
            reach = t_quantile(freedom) * math.sqrt(variance)
            low, high = math.exp(middle - reach), math.exp(middle + reach)
        found[name] = Ratio(math.exp(middle), low, high)
    return found


def _noise(samples: Mapping[str, Mapping[int, Sample]]) -> tuple[float, int]:
    """Return the variance of the logarithms around approach and block, and its degrees of freedom.

    Cells may be missing.
    """
    cells = [
        (name, block, math.log(sample.value))
        for name, blocks in samples.items()
        for block, sample in blocks.items()
        if sample.value > 0
    ]
    if not cells:
        return 0.0, 0
    names, numbers = ({cell[i]: None for cell in cells} for i in (0, 1))
    design = np.array(
        [
            [name == one for one in names] + [block == one for one in numbers]
            for name, block, _ in cells
        ],
        dtype=float,
    )
    logs = np.array([cell[2] for cell in cells])
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
    found = []
    if one.unfinished:
        found.append(
            f"served {one.requests_per_s:.2f} of {one.offered_rps:.2f} req/s: "
            f"{one.unfinished} of {one.requests} unfinished at the end"
        )
    if one.failed:
        found.append(f"{one.failed} of {one.requests} failed: {'; '.join(one.failures)}")
    if one.held_mean_s and one.e2el_mean_s and one.held_mean_s >= 0.01 * one.e2el_mean_s:
        found.append(
            f"head of line: finished requests waited {_time(one.held_mean_s)} for their batch"
        )
    if alone is not None and one.tpot_s and alone.tpot_s:
        found.append(
            f"contention: a token took {one.tpot_s.p50 / alone.tpot_s.p50:.2f} times as long as "
            "with one worker"
        )
    waited_s = one.queue_mean_s
    if waited_s is not None and one.e2el_mean_s and waited_s >= 0.05 * one.e2el_mean_s:
        found.append(f"finished requests waited {_time(waited_s)} before the engine began")
    return tuple(found)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
