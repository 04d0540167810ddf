"""Counts how often `tuner watch` alarms falsely, and how soon rightly, on random worlds.

    python scripts/study_watch.py --worlds 25 [--level noisy] [--change "slower 20 %"]
    python scripts/study_watch.py --smoke

Each world is a machine with traffic (scripts/random_worlds.py). `tuner sweep --fast` makes a
profile of its first 20 minutes, on virtual time; then the same machine, with new noise and a new
engine start, serves what comes next, scraped every 2 s in windows of 10 s. Nothing changes for
--windows windows; then the machine is slower or the traffic another, and as many windows follow.
Printed per level of noise: watches with any false alarm before the change (what is beyond a limit,
and *re-tune now*), the verdict at that moment, and per change how many were caught within --windows
windows, after how many in the middle and at the 90th percentile.
"""

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

import evidence
import numpy as np
from random_worlds import CAPS, NOISE, Case, case
from study_sweeps import parsed, swept, workers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.live_sim import SimulatedServer, simulated
from tuner.live.watch.drift import reference
from tuner.live.watch.promised import Promised, speed_sd_of
from tuner.live.watch.verdict import Verdict, Watch
from tuner.live.watch.windows import WindowMaker
from tuner.profile.stored_twin import restored, stored
from tuner.runs.settings import SweepSettings
from tuner.twin.simulation import Traffic

TUNED_S = 1200.0
WINDOW_S, EVERY_S, RUN_IN_S = 10.0, 2.0, 60.0
TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class StepChange:
    """A change of the machine or of the traffic, as factors."""

    slower: float = 1.0
    rate: float = 1.0
    inputs: float = 1.0
    outputs: float = 1.0


CHANGES: Final[dict[str, StepChange]] = {
    "slower 5 %": StepChange(slower=1.05),
    "slower 10 %": StepChange(slower=1.10),
    "slower 20 %": StepChange(slower=1.20),
    "slower 50 %": StepChange(slower=1.50),
    "rate x 1.5": StepChange(rate=1.5),
    "rate x 2": StepChange(rate=2.0),
    "rate x 0.5": StepChange(rate=0.5),
    "inputs x 2": StepChange(inputs=2.0),
    "outputs x 1.5": StepChange(outputs=1.5),
    "outputs x 2": StepChange(outputs=2.0),
}


@dataclass(frozen=True, slots=True)
class Result:
    level: str
    seed: int
    change: str
    false_alarms: tuple[str, ...]
    """What was beyond a limit at any window before the change."""

    retuned: bool
    """Whether *re-tune now* was said before it."""

    verdict: Verdict
    """Just before it."""

    delay: float
    """Windows from the change to the first alarm that was not there before; infinite without."""

    news: tuple[str, ...]
    """What that alarm was."""

    after: Verdict
    """Then, or at the end."""


def promised_of(one: Case) -> Promised | None:
    """Return what a sweep of the first part promises; None where its twin was not believed."""
    early = replace(one, traffic=one.traffic.between(0.0, TUNED_S))
    settings = SweepSettings(
        ceiling=CAPS[-1], slo=None, window="all", step_s=60.0, budget_s=3600.0, headroom=1.25,
        fast=True, fresh=False, closed_sessions=False, seed=0, trace_block_size=16,
    )  # fmt: skip
    outcome = swept(early, settings)
    view = outcome.conclusion.view
    if view is None or not view.is_believed:
        return None
    twin = restored(stored(view), source="study")
    return Promised(
        twin=twin,
        slo=outcome.slo,
        max_num_seqs=outcome.verdict.max_num_seqs,
        caps=CAPS,
        headroom=1.25,
        reference=reference(twin, captured_rps=len(early.traffic) / TUNED_S, validated_load=1.25),
        speed_sd=speed_sd_of(twin),
        tolerance=TOLERANCE,
    )


def changed(
    traffic: Traffic, at_s: float, change: StepChange, *, seed: int, most_tokens: int
) -> Traffic:
    """Return the traffic with other lengths and another rate from some time on.

    No request gets longer than ``most_tokens``, which a server takes at most: one that never fits
    into the KV cache would be tried for ever.
    """
    rng = np.random.default_rng(seed)
    late = traffic.arrival_s >= at_s
    copies = np.where(late, np.floor(change.rate + rng.random(len(late))), 1).astype(int)
    rows = np.repeat(np.arange(len(late)), copies)
    first = np.concatenate(([True], np.diff(rows) > 0)) if len(rows) else np.zeros(0, bool)
    jitter_s = np.where(first, 0.0, rng.uniform(0.0, 2.0, len(rows)))
    arrival_s = traffic.arrival_s[rows] + jitter_s
    order = np.argsort(arrival_s, kind="stable")
    rows, arrival_s = rows[order], arrival_s[order]

    def scaled(lengths: np.ndarray, by: float) -> np.ndarray:
        return np.asarray(
            np.maximum(1, np.rint(lengths[rows] * np.where(late[rows], by, 1.0))), np.int64
        )

    outputs = np.minimum(scaled(traffic.output_length, change.outputs), most_tokens - 1)
    inputs = np.minimum(scaled(traffic.input_length, change.inputs), most_tokens - outputs)
    return Traffic(arrival_s, inputs, outputs, np.minimum(traffic.cached_length[rows], inputs - 1))


@dataclass(slots=True)
class Stand:
    """A watch and where it stands."""

    maker: WindowMaker
    watch: Watch
    place: int = 0
    """The next scrape."""

    said: list[tuple[frozenset[str], Verdict]] = field(default_factory=list)
    """What was beyond its limit, and the verdict, after every window."""

    def go(self, server: SimulatedServer, until_s: float, *, until_alarm: bool = False) -> None:
        """Watch on; with ``until_alarm`` until something is beyond a limit that was not before."""
        standing = self.said[-1][0] if self.said else frozenset[str]()
        while self.place * EVERY_S <= until_s:
            at_s = self.place * EVERY_S
            self.place += 1
            window = self.maker.add(at_s, {"0": server.scrape(at_s)})
            if window is None:
                continue
            self.watch.add(window)
            beyond = frozenset([*self.watch.beyond, *self.watch.distant_lengths])
            self.said.append((beyond, self.watch.verdict))
            if until_alarm and beyond - standing:
                return


def server_of(one: Case, promised: Promised, change: StepChange, at_s: float) -> SimulatedServer:
    """Return the machine with new noise, and with what came after the profile's traffic."""
    live = one.traffic.between(TUNED_S, TUNED_S + 2 * at_s)
    live = replace(live, arrival_s=live.arrival_s - TUNED_S)
    kv = one.world.kv
    most_tokens = (kv.blocks - 1) * kv.block_size
    return simulated(
        replace(one.world, seed=one.world.seed + 100_000),
        changed(live, at_s, change, seed=one.world.seed, most_tokens=most_tokens),
        cap=promised.max_num_seqs,
        until_s=2 * at_s,
        slow_from_s=at_s,
        slow_by=change.slower,
    )


def results_of(
    job: tuple[int, str], *, names: Sequence[str], windows: int, harder: bool
) -> list[Result]:
    seed, level = job
    at_s = windows * WINDOW_S
    one = case(seed, level, harder=harder, duration_s=TUNED_S + 2 * at_s)
    promised = promised_of(one)
    if promised is None:
        return []
    honest = Stand(WindowMaker(WINDOW_S, EVERY_S, RUN_IN_S), Watch(promised))
    honest.go(server_of(one, promised, StepChange(), at_s), at_s)
    before = honest.said
    found = []
    for name in names:
        now = deepcopy(honest)
        now.go(server_of(one, promised, CHANGES[name], at_s), 2 * at_s, until_alarm=True)
        news = now.said[-1][0] - before[-1][0]
        now.watch.ask()
        found.append(
            Result(
                level=level,
                seed=seed,
                change=name,
                false_alarms=tuple(sorted(frozenset().union(*(one for one, _ in before)))),
                retuned=any(verdict == "re-tune now" for _, verdict in before),
                verdict=before[-1][1],
                delay=float(len(now.said) - len(before)) if news else math.inf,
                news=tuple(sorted(news)),
                after=now.watch.verdict,
            )
        )
    return found


SMOKE = "--worlds 1 --level quiet --windows 20 --processes 1 --change 'rate x 2'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=25)
    parser.add_argument("--first", type=int, default=900, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--change", action="append", choices=CHANGES, help="default: all")
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--harder", action="store_true", help="worlds the twin cannot represent")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke=SMOKE)
    names = options.change or list(CHANGES)
    begin_s = monotonic()
    levels = options.level or list(NOISE)
    seeds = range(options.first, options.first + options.worlds)
    work: Callable[[tuple[int, str]], list[Result]] = partial(
        results_of, names=names, windows=options.windows, harder=options.harder
    )
    found: dict[str, list[Result]] = {}
    with workers(options.processes) as pool:
        for level in levels:
            done = pool.imap_unordered(work, [(seed, level) for seed in seeds])
            if results := [one for each in done for one in each]:
                report(level, results, names, options.windows)
                found[level] = results
            else:
                print(f"{level}: no twin was believed", flush=True)
    kept = {
        "head": ["what changes", *(f"{level}: caught, after (middle)" for level in found)],
        "rows": rows_of(found, names, options.windows),
        "watches": [asdict(one) for results in found.values() for one in results],
    }
    evidence.keep(options.keep, kept)
    print(f"{options.worlds} worlds a level in {monotonic() - begin_s:.0f} s")


def rows_of(
    found: Mapping[str, Sequence[Result]], names: Sequence[str], windows: int
) -> list[list[str]]:
    """Return the rows of the table in docs/experiments.md, with a column for each level."""
    honest = [[one for one in results if one.change == names[0]] for results in found.values()]
    alarmed = [f"{sum(bool(one.false_alarms) for one in some)} of {len(some)}" for some in honest]
    valid = [str(sum(one.verdict == "still valid" for one in some)) for some in honest]
    rows = [
        ["nothing: watches with a false alarm", *alarmed],
        [f"nothing: *still valid* after {windows} windows", *valid],
    ]
    for name in names:
        row = [name]
        for results in found.values():
            delays = np.array([one.delay for one in results if one.change == name])
            middle = np.quantile(delays, 0.5, method="higher")
            after = f", {middle:.0f} windows" if np.isfinite(middle) else ""
            row.append(f"{np.isfinite(delays).mean():.2f}{after}")
        rows.append(row)
    return rows


def report(level: str, results: Sequence[Result], names: Sequence[str], windows: int) -> None:
    honest = [one for one in results if one.change == names[0]]
    alarmed = [(one.seed, *one.false_alarms) for one in honest if one.false_alarms]
    verdicts = Counter(one.verdict for one in honest)
    print(
        f"{level}: {len(honest)} worlds x {windows} honest windows: {len(alarmed)} with a false"
        f" alarm, {sum(one.retuned for one in honest)} with re-tune now; verdicts"
        f" {dict(verdicts)}; alarms {alarmed}"
    )
    for name in names:
        some = [one for one in results if one.change == name]
        delays = np.array([one.delay for one in some])
        after = Counter(one.after for one in some)
        news = Counter(what for one in some for what in one.news)
        print(
            f"    {name:14} caught {np.isfinite(delays).mean():.2f}"
            f" | windows: {np.quantile(delays, 0.5, method='higher'):.0f} in the middle,"
            f" {np.quantile(delays, 0.9, method='higher'):.0f} at p90 | {dict(after)}"
            f" | by {dict(news)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
