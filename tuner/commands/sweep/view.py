"""The output of ``tuner sweep``: progress on stderr while it runs, curve and verdict on stdout."""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.commands.shared.console import LONG_MS, console_for, shown_ms
from tuner.live.exporter import Exporter
from tuner.replay.measure import Measurement, Spread
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import SweepSettings

TABLE_WIDTH = 80
"""What the curve needs to show every number whole."""


class RunProgress:
    """Tells on stderr how the run goes: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, settings: SweepSettings, exporter: Exporter | None) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.exporter = exporter
        self.budget_s = settings.budget_s
        self.began_s = time.monotonic()
        self.what, self.window_s = "", 0.0
        self.status = self.console.status("") if self.console.is_terminal else None

    def __enter__(self) -> Self:
        if self.status is not None:
            self.status.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self.status is not None:
            self.status.stop()

    def stage(self, text: str) -> None:
        self._line(text)
        if self.status is not None:
            self.status.update(escape(text))

    def trial(self, what: str, length_s: float) -> None:
        self.what, self.window_s = what, length_s
        if self.status is None:
            self._line(f"{what}: {length_s:.0f}s")

    def live(self, elapsed_s: float, done: int, in_flight: int) -> None:
        if self.exporter is not None:
            self.exporter.in_flight.set(in_flight)
        if self.status is not None:
            left_s = max(0.0, self.window_s - elapsed_s)
            self.status.update(
                f"{self._clock()} {escape(self.what)}: {elapsed_s:.0f}s of {self.window_s:.0f}s, "
                f"{left_s:.0f}s to go; {done} requests done, {in_flight} in flight"
            )

    def measured(self, what: str, measurement: Measurement) -> None:
        one = measurement
        if self.exporter is not None:
            self.exporter.measured(one)
        of_several = one.cut is not None and one.blocks > 1  # the bound is over all, the cut is not
        parts = [
            f"{what}: {_attainment(one)} within the SLO"
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
        self.console.print(f"{self._clock()} {escape(text)}", soft_wrap=True)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self.began_s), 60)
        return f"{minutes:02}:{seconds:02}"


class NamedProgress:
    """Tells how the run of one trace of several goes."""

    def __init__(self, progress: RunProgress, name: str) -> None:
        self._progress, self._name = progress, name

    def stage(self, text: str) -> None:
        self._progress.stage(f"{self._name}: {text}")

    def trial(self, what: str, length_s: float) -> None:
        self._progress.trial(f"{self._name}: {what}", length_s)

    def live(self, elapsed_s: float, done: int, in_flight: int) -> None:
        self._progress.live(elapsed_s, done, in_flight)

    def measured(self, what: str, measurement: Measurement) -> None:
        self._progress.measured(f"{self._name}: {what}", measurement)

    def warn(self, text: str) -> None:
        self._progress.warn(f"{self._name}: {text}")


def render(
    outcome: SweepOutcome, *, profile_path: Path, run_dir: Path, warnings: Sequence[str]
) -> None:
    """Print the curve, the verdict and what to do with it."""
    render_found(outcome, profile_path=profile_path, run_dir=run_dir, warnings=warnings)
    if outcome.verdict.kind not in {"overloaded", "inconclusive"}:
        console_for().print(
            f"next: tuner apply {escape(str(profile_path))} --dry-run", soft_wrap=True
        )


def render_found(
    outcome: SweepOutcome, *, profile_path: Path, run_dir: Path, warnings: Sequence[str]
) -> None:
    """Print the curve and the verdict."""
    console = console_for(at_least=TABLE_WIDTH)
    verdict = outcome.verdict
    view = outcome.conclusion.view
    console.print(curve_table(outcome))
    if any(step.changes for step in outcome.curve):
        console.print()
        console.print("what each doubling changes, with its 95 % interval")
        console.print(changes_table(outcome))
    console.print()
    console.print(f"[bold]{escape(verdict.reason)}[/]")
    console.print(f"confidence {verdict.confidence:.2f}; SLO {escape(str(outcome.slo))}")
    if view is not None and view.errors:
        count = len(view.errors)
        console.print(
            f"the twin's error against {count} replayed window{'s' * (count != 1)}: "
            f"{view.error:.1%} in the median"
        )
    for title, one in (
        ("replayed at the choice", outcome.chosen.measured if view is not None else None),
        ("on a fresh engine", outcome.confirmed),
        ("with headroom", outcome.with_headroom),
    ):
        if one is not None:
            console.print(
                f"{title}: {_attainment(one)} within the SLO, {one.requests_per_s:.2f} req/s, "
                f"p95 TPOT {_time(one.tpot_s, 'p95')}, p99 E2EL {_time(one.e2el_s, 'p99')}"
            )
    if (found := outcome.aa_check) is not None:
        console.print(
            f"the fresh engine against the ladder's: iterations {found.slower:+.1%} (the machine "
            f"explains {found.slower_limit:.0%}), in SLO {found.attainment:+.1%} "
            f"({found.attainment_limit:.0%})"
        )
    for said in outcome.predictions:
        numbers = said.numbers
        console.print(
            f"promised at {said.load:g} times the load: {numbers.attainment:.1%} within the SLO, "
            f"p95 TPOT {_time(numbers.tpot_s, 'p95')}, p99 E2EL {_time(numbers.e2el_s, 'p99')}"
        )
    starts = len(outcome.starts_s)
    console.print(
        f"{starts} engine start{'s' * (starts != 1)}, {sum(outcome.starts_s):.0f}s; "
        f"{outcome.replay_s:.0f}s of replay"
    )
    for warning in warnings:
        console.print(f"[yellow]Warning:[/] {escape(warning)}")
    console.print(f"measurements: {escape(str(run_dir))}", soft_wrap=True)
    console.print(f"profile: {escape(str(profile_path))}", soft_wrap=True)


def curve_table(outcome: SweepOutcome) -> Table:
    """Return the curve as a table, the chosen step marked."""
    table = plain_table(
        "max_num\n_seqs", "in SLO", "goodput\nreq/s", "output\ntok/s", "TTFT\np99 ms",
        "TPOT\np95 ms", "E2EL\np99 ms", "queue\np95 ms", "KV\npeak", "pre-\nempt", "source",
    )  # fmt: skip
    for step in outcome.curve:
        one = step.numbers
        chosen = one.max_num_seqs == outcome.verdict.max_num_seqs
        kv = one.kv_cache_usage
        table.add_row(
            f"{'> ' if chosen else ''}{one.max_num_seqs}",
            _attainment(one),
            "cut" if one.cut else f"{one.goodput_rps:.2f}",
            f"{one.output_tokens_per_s:,.0f}",
            _ms(one.ttft_s, "p99"),
            _ms(one.tpot_s, "p95"),
            _ms(one.e2el_s, "p99"),
            _ms(one.queue_s, "p95"),
            "-" if kv is None else f"{kv.peak:.0%}",
            str(one.preemptions),
            step.source,
            style="bold" if chosen else None,
        )
    return table


def changes_table(outcome: SweepOutcome) -> Table:
    """Return what each step up the ladder changes, interval below value."""
    names = {
        "goodput_rps": ("goodput", _percent),
        "tpot_p95_ms": ("TPOT p95", _percent),
        "e2el_p99_ms": ("E2EL p99", _percent),
        "queue_p95_ms": ("queue p95 ms", _milliseconds),
        "kv_cache_usage_peak": ("KV peak", _percent),
        "preemptions": ("preempted", _number),
    }
    told = {name for step in outcome.curve for name in step.changes}
    if not any(step.numbers.preemptions for step in outcome.curve):
        told -= {"preemptions"}
    names = {name: shown for name, shown in names.items() if name in told}
    table = plain_table("step", *(heading for heading, _ in names.values()))
    for below, step in pairwise(outcome.curve):
        cells = []
        for name, (_, shown) in names.items():
            one = step.changes.get(name)
            cells.append(
                "-\n"
                if one is None
                else f"{shown(one.value)}\n[dim]({shown(one.low)} {shown(one.high)})[/]"
            )
        chosen = step.numbers.max_num_seqs == outcome.verdict.max_num_seqs
        title = f"{below.numbers.max_num_seqs} to {step.numbers.max_num_seqs}"
        table.add_row(title, *cells, style="bold" if chosen else None)
    return table


def plain_table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _percent(share: float) -> str:
    return f"{share:+.0%}" if share < 10 else f"x{1 + share:,.0f}"


def _number(value: float) -> str:
    return f"{value:+,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) < LONG_MS else f"{value / 1e3:+,.0f}s"


def _attainment(one: Measurement) -> str:
    """Of a cut step only the upper bound is known."""
    return f"<={one.attainment_bound:.1%}" if one.cut else f"{one.attainment:.1%}"


def _time(spread: Spread | None, name: str) -> str:
    """Return a time with its unit, for a sentence."""
    value = _ms(spread, name)
    return value if value == "-" or value.endswith("s") else f"{value} ms"


def _ms(spread: Spread | None, name: str) -> str:
    if spread is None:
        return "-"
    return shown_ms(getattr(spread, name) * 1e3)
