"""The output of ``tuner sweep``: progress on stderr while it runs, curve and verdict on stdout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from tuner.commands.shared.console import (
    TimeColumn,
    console_for,
    plain_table,
    print_block,
    print_line,
    print_warnings,
    shown,
)
from tuner.commands.shared.kept_result import keep_result
from tuner.commands.shared.live_view import IDLE, CommandProgress, rows_of
from tuner.commands.shared.next_step import after, asked_for
from tuner.commands.sweep.one_trace import FinishedSweep
from tuner.commands.sweep.options import SweepOptions
from tuner.profile.numbers import CapNumbers, CurveStep
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import (
    block_of,
    milliseconds,
    minutes,
    percent,
    predicted_caps,
    promised,
)
from tuner.replay.live_reading import LiveReading
from tuner.replay.measure import Measurement, Spread
from tuner.replay.readings import Read
from tuner.runs.outcome import CheckRecord, Prediction, SweepOutcome
from tuner.traffic.window import parse_duration_s
from tuner.twin.verdict_text import miss_in_words

TABLE_WIDTH = 80
"""Columns that the curve needs to show every number whole."""

ALIKE = 1.1
"""Times as long: what differs by less needs no explanation."""

LEAST_US = 0.05
"""What a prompt's token costs less is not shown."""


class RunProgress(CommandProgress):
    ROWS: ClassVar[tuple[str, ...]] = ("ladder", "now", "KV", "device", "belief", "left")

    def __init__(self, budget_s: float, caps: Sequence[int] = ()) -> None:
        """``caps`` are those of the ladder."""
        super().__init__()
        self.budget_s = budget_s
        self.what, self.window_s = "", 0.0
        self.ladder = dict.fromkeys(caps, False)
        """Cap → whether it was measured."""

    def stage(self, text: str) -> None:
        self._line(text)
        self._show("", IDLE)

    def trial(self, what: str, length_s: float) -> None:
        before = self._cap()
        self.what, self.window_s = what, length_s
        if before in self.ladder and before != self._cap():
            self.ladder[before] = True
        if not self.view.is_on:
            self._line(f"{what}: {length_s:.0f}s")
        self._show(f"{what}: {length_s:.0f} s", {**self._steps(), **IDLE})

    def live(self, seen: LiveReading) -> None:
        if self.view.is_on:
            title = f"{self.what}: {seen.elapsed_s:.0f} of {self.window_s:.0f} s, {seen.done} done"
            self._show(title, rows_of(seen), at_once=False)

    def reading(self, read: Read | None) -> Read | None:
        """Return what reads the device as ``read`` does, and shows what it read."""
        return self.view.reading(read)

    def believed(self, best: int, agreeing: int, draws: int) -> None:
        self._show("", {"belief": f"{best}, in {agreeing} of {draws} draws"})

    def _show(self, title: str, rows: Mapping[str, str], *, at_once: bool = True) -> None:
        left_s = self.budget_s - self.elapsed_s
        left = {"left": f"at most {minutes(max(0.0, left_s))}"}
        title = f"{self._clock()} {title}" if title else self.view.title
        self.view.show(title, {**rows, **left}, at_once=at_once)

    def _cap(self) -> int:
        """Return the cap of the step that is under way, its last word; 0 where it has none, as a
        ramp up to a cap."""
        name, _, word = self.what.rpartition(" ")
        return int(word) if word.isdecimal() and not name.endswith(" to") else 0

    def _steps(self) -> dict[str, str]:
        """Return the rows that say what is done and what is to come."""
        return {"ladder": self._ladder()}

    def _ladder(self) -> str:
        """Return the caps: measured, running, to come."""
        now = self._cap()
        done, here = ("✓", "▸") if self.console.encoding.startswith("utf") else ("+", ">")
        return "  ".join(
            f"{here}{cap}" if cap == now else f"{cap}{done}" if is_done else f"{cap}"
            for cap, is_done in self.ladder.items()
        )

    def measured(self, what: str, measurement: Measurement) -> None:
        one = measurement
        if one.max_num_seqs in self.ladder:
            self.ladder[one.max_num_seqs] = True
        of_several = one.cut is not None and one.blocks > 1  # the bound is over all, the cut is not
        parts = [
            f"{what}: {_attainment(one)} met the SLO"
            + (f" over {one.blocks} windows" if of_several else ""),
            f"{one.output_tokens_per_s:,.0f} tok/s",
            f"p95 TPOT {_time(one.tpot_s, 'p95')}",
            f"p99 E2EL {_time(one.e2el_s, 'p99')}",
        ]
        cut = "a window was cut" if of_several else "cut"
        self._line(", ".join(parts) + (f" ({cut}: {one.cut})" if one.cut else ""))

    def warn(self, text: str) -> None:
        self._line(f"Warning: {text}")

    def _line(self, text: str) -> None:
        print_line(self.console, f"{self._clock()} {text}")

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        return f"{minutes:02}:{seconds:02}"


class NamedProgress:
    """Tells how the run of one trace of several goes."""

    def __init__(self, progress: RunProgress, name: str) -> None:
        self._progress, self._name = progress, name

    def stage(self, text: str) -> None:
        self._progress.stage(f"{self._name}: {text}")

    def trial(self, what: str, length_s: float) -> None:
        self._progress.trial(f"{self._name}: {what}", length_s)

    def live(self, seen: LiveReading) -> None:
        self._progress.live(seen)

    def believed(self, best: int, agreeing: int, draws: int) -> None:
        self._progress.believed(best, agreeing, draws)

    def measured(self, what: str, measurement: Measurement) -> None:
        self._progress.measured(f"{self._name}: {what}", measurement)

    def warn(self, text: str) -> None:
        self._progress.warn(f"{self._name}: {text}")


@dataclass(frozen=True, slots=True)
class SweepPrint:
    """The facts that are printed of a finished sweep beside what it found."""

    next: str
    """The command to run."""

    run_dir: Path
    warnings: Sequence[str]
    """In the order of what they change."""

    said_before: int
    """How many more there are of the trace itself, which were said before."""

    details: bool


def print_of(
    options: SweepOptions, done: FinishedSweep, profile: ServingProfile, path: Path
) -> SweepPrint:
    """Return what is printed of a finished sweep, whose profile went to ``path``."""
    return SweepPrint(
        next=next_command(options, profile, path),
        run_dir=done.run_dir,
        warnings=done.all_warnings if options.details else done.doubts,
        said_before=0 if options.details else len(done.warnings),
        details=options.details,
    )


def keep_answer(
    options: SweepOptions, done: FinishedSweep, profile: ServingProfile, path: Path
) -> None:
    """Keep what a finished sweep came to in its folder, as it is printed: its profile went to
    ``path``. Raises TargetError."""
    next_ = print_of(options, done, profile, path).next
    keep_result(done.run_dir, done.as_json(path), block_of(profile, next_=next_))


def next_command(options: SweepOptions, profile: ServingProfile, path: Path) -> str:
    """Return what to run after a sweep: the same again where that would tell more, or what goes on
    with the profile."""
    decision, real = profile.decision, profile.provenance.engine != "sim"
    if real and decision.verdict == "not_reached" and options.trace:
        return again(options, ceiling=2 * max(one.max_num_seqs for one in profile.curve))
    twice = f"{2 * parse_duration_s(options.budget, option='--budget'):g}s"
    if real and decision.verdict == "inconclusive" and options.trace:
        return again(options, budget=twice)
    return after(profile, path, base=options.base)


def again(options: SweepOptions, **changes: Any) -> str:  # noqa: ANN401 - any option
    """Return the command that sweeps again, in a run directory of its own."""
    return asked_for("sweep", options, resume=False, run_dir=None, json=False, **changes)


def render(outcome: SweepOutcome, profile: ServingProfile, how: SweepPrint) -> None:
    """Print the answer, the curve, what the answer rests on, and the next command."""
    console = console_for(at_least=TABLE_WIDTH)
    block = block_of(profile, next_=how.next)
    print_block(console, replace(block, rows=(), aside="", next=""))
    console.print()
    console.print(curve_table(profile))
    for note in (_of_predicted(profile), _of_front_end(profile)):
        if note:
            console.print(note)
    if how.details:
        _print_details(console, outcome)
    console.print()
    console.print(f"measurements: {shown(how.run_dir)}", soft_wrap=True)
    console.print()
    print_block(console, replace(block, title=f"Verdict: {block.aside}", aside=""))
    print_warnings(console, how.warnings, all_=how.details, before=how.said_before)


def _confirming(outcome: SweepOutcome) -> str:
    return "server" if outcome.facts.is_served else "engine"


def curve_table(profile: ServingProfile) -> Table:
    """Return the curve as a table, one unit a column. The rows of the choice and of the cap that is
    set now are what a fresh server gives, as the verdict has them."""
    choice, now = profile.decision.max_num_seqs, profile.baseline
    by_cap: dict[int, CapNumbers] = {step.max_num_seqs: step for step in profile.curve}
    if now is not None and now.numbers is not None:
        by_cap[now.numbers_at] = now.numbers
    by_cap[choice] = promised(profile)
    rows = sorted(by_cap.items())
    ttft, tpot, e2el = (
        TimeColumn.of([_seconds(numbers, name, statistic) for _, numbers in rows])
        for name, statistic in TIMES
    )
    table = plain_table(
        "max_num_seqs", "met\nSLO", "goodput\nreq/s", "output\ntok/s", f"TTFT\np99 {ttft.unit}",
        f"TPOT\np95 {tpot.unit}", f"E2EL\np99 {e2el.unit}", "KV\npeak", "preempted",
        gap=1,
    )  # fmt: skip
    for cap, numbers in rows:
        chosen, kv = cap == choice, numbers.kv_cache_usage
        is_bound = isinstance(numbers, CurveStep) and numbers.cut and numbers.source == "measured"
        is_now = now is not None and cap == now.max_num_seqs
        table.add_row(
            f"{'> ' if chosen else ''}{cap}{' (now)' if is_now else ''}",
            f"<={percent(numbers.intervals['attainment'][1])}"
            if is_bound and isinstance(numbers, CurveStep)
            else percent(numbers.attainment),
            "cut" if is_bound else f"{numbers.goodput_rps:.2f}",
            f"{numbers.output_tokens_per_s:,.0f}",
            *(
                column.shown(_seconds(numbers, name, statistic))
                for column, (name, statistic) in zip((ttft, tpot, e2el), TIMES, strict=True)
            ),
            "-" if kv is None else f"{kv.peak:.0%}",
            str(numbers.preemptions),
            style="bold" if chosen else None,
        )
    return table


TIMES = (("ttft_ms", "p99"), ("tpot_ms", "p95"), ("e2el_ms", "p99"))


def _seconds(numbers: CapNumbers, name: str, statistic: str) -> float | None:
    spread = getattr(numbers, name)
    return None if spread is None else float(getattr(spread, statistic)) / 1e3


def _of_predicted(profile: ServingProfile) -> str:
    """Return which rows no replay stands behind."""
    caps = [str(cap) for cap in predicted_caps(profile)]
    return f"predicted from measured step times, not replayed: {', '.join(caps)}" if caps else ""


def _of_front_end(profile: ServingProfile) -> str:
    """Return what the server that confirmed adds to the engine's own times."""
    front_end = profile.front_end
    if front_end is None:
        return ""
    request_ms = front_end.request_ms + front_end.delivery_ms + front_end.chunk_ms
    return (
        f"the chosen row is as seen through a server, which adds {request_ms:.1f} ms a request and "
        f"{max(0.0, front_end.contention - 1):.0%} to\niterations; the others are the engine's own"
    )


def _confidence(outcome: SweepOutcome) -> str:
    """Return the confidence and, where the twin decided, in how many draws the choice is right."""
    conclusion, confidence = outcome.conclusion, outcome.verdict.confidence
    if conclusion.view is None or not conclusion.by_twin:
        return f"{confidence:.2f}"
    draws = conclusion.view.weighed.draws
    return f"{confidence:.2f} ({round(confidence * draws)} of {draws} draws)"


def _print_details(console: Console, outcome: SweepOutcome) -> None:
    """Print what each doubling changes, and all that was held against something else."""
    verdict, view = outcome.verdict, outcome.conclusion.view
    if any(step.changes for step in outcome.curve):
        console.print()
        console.print("what each doubling changes, with its 95 % interval")
        console.print(changes_table(outcome))
    console.print()
    console.print(shown(verdict.reason))
    console.print(f"confidence {_confidence(outcome)}; SLO {shown(outcome.slo)}")
    if outcome.checked is not None:
        console.print(_record(outcome.checked))
    for said in outcome.predictions:
        numbers = said.numbers
        console.print(
            f"promised at {said.load:g} times the load: {numbers.attainment:.1%} met the SLO, "
            f"p95 TPOT {_time(numbers.tpot_s, 'p95')}, p99 E2EL {_time(numbers.e2el_s, 'p99')}"
        )
        if said.load == 1.0:
            console.print(_on_days(said))
    for title, one in (
        ("the ladder's replay of the choice", outcome.chosen.measured if view else None),
        (f"measured at the choice, on a fresh {_confirming(outcome)}", outcome.confirmed),
        ("the same with headroom", outcome.with_headroom),
    ):
        if one is not None:
            running = f" and {one.running_peak} running" if one.is_logged else ""
            console.print(
                f"{title}: {_attainment(one)} met the SLO, {one.requests_per_s:.2f} req/s, "
                f"p95 TPOT {_time(one.tpot_s, 'p95')}, p99 E2EL {_time(one.e2el_s, 'p99')}, at "
                f"most {one.in_flight_peak} in flight{running}"
            )
    starts = len(outcome.starts_s)
    console.print(
        f"{starts} engine start{'s' * (starts != 1)}, {sum(outcome.starts_s):.0f}s; "
        f"{outcome.replay_s:.0f}s of replay"
    )


def _on_days(said: Prediction) -> str:
    """Say between what 95 % are, of this traffic and of other traffic like it."""
    told = []
    for name, ends in (("again", said.intervals), ("another day", said.another_day)):
        if ends is None:
            told.append(f"{name}: not claimed, the trace is shorter than 10 minutes")
            continue
        low, high = ends["attainment"]
        tail = ""
        if "e2el_p99_ms" in ends:
            tail = f", p99 E2EL {' to '.join(map(milliseconds, ends['e2el_p99_ms']))}"
        told.append(f"{name}, 95 %: {low:.1%} to {high:.1%} met the SLO{tail}")
    return "\n".join(told)


def _record(record: CheckRecord) -> str:
    """Say how the twin did in the confirming replay, and what it missed most."""
    said = []
    of = "unseen windows" if record.unseen else "the ladder's windows, another engine"
    for name, one in (
        (f"foretold of {of}", record.foretold),
        ("at its speed", record.at_own_speed),
    ):
        if one.numbers:
            failed = "failed" if one.failed else "passed"
            said.append(
                f"{name}: {one.held} of {len(one.numbers)} numbers held, {failed}; furthest off: "
                f"{miss_in_words(one.worst)}"
            )
    return "\n".join(said)


def changes_table(outcome: SweepOutcome) -> Table:
    """Return what each step up the ladder changes, interval below value."""
    waits = [one for step in outcome.curve if (one := step.changes.get("queue_p95_ms"))]
    queue = TimeColumn.of(abs(ms) / 1e3 for one in waits for ms in (one.value, one.low, one.high))
    names = {
        "goodput_rps": ("goodput", _percent),
        "tpot_p95_ms": ("TPOT p95", _percent),
        "e2el_p99_ms": ("E2EL p99", _percent),
        "queue_p95_ms": (f"queue p95 {queue.unit}", lambda ms: queue.changed(ms / 1e3)),
        "kv_cache_usage_peak": ("KV peak", _percent),
        "preemptions": ("preempted", _number),
    }
    told = {name for step in outcome.curve for name in step.changes}
    if not any(step.numbers.preemptions for step in outcome.curve):
        told -= {"preemptions"}
    names = {name: how for name, how in names.items() if name in told}
    table = plain_table("step", *(heading for heading, _ in names.values()))
    for below, step in pairwise(outcome.curve):
        cells = []
        for name, (_, told_as) in names.items():
            one = step.changes.get(name)
            cells.append(
                "-\n"
                if one is None
                else f"{told_as(one.value)}\n[dim]({told_as(one.low)} {told_as(one.high)})[/]"
            )
        chosen = step.numbers.max_num_seqs == outcome.verdict.max_num_seqs
        title = f"{below.numbers.max_num_seqs} to {step.numbers.max_num_seqs}"
        table.add_row(title, *cells, style="bold" if chosen else None)
    return table


def _percent(share: float) -> str:
    return f"{share:+.0%}" if share < 10 else f"x{1 + share:,.0f}"


def _number(value: float) -> str:
    return f"{value:+,.0f}"


def _attainment(one: Measurement) -> str:
    """Return the attainment for the table; of a cut step its upper bound, which alone is known."""
    return f"<={one.attainment_bound:.1%}" if one.cut else f"{one.attainment:.1%}"


def _time(spread: Spread | None, name: str) -> str:
    """Return a time with its unit, for a sentence."""
    return "-" if spread is None else milliseconds(getattr(spread, name) * 1e3)
