"""The output of ``tuner watch``: a line a window on stderr, the result on stdout."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

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
from tuner.commands.shared.live_view import CommandProgress
from tuner.commands.shared.next_step import asked_for, command
from tuner.commands.watch.options import FOREVER, WatchOptions
from tuner.live.watch.journal import plain
from tuner.live.watch.seen import WindowSummary
from tuner.live.watch.traffic import LENGTHS
from tuner.live.watch.verdict import MonitorReading, Watch
from tuner.live.watch.verdict_text import SHARES, limits
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import first_said, is_simulated, minutes, percent
from tuner.profile.verdict_block import VerdictBlock
from tuner.traffic.window import parse_duration_s

TIMES = {
    "itl_ms": "between tokens",
    "ttft_ms": "to first token",
    "e2el_ms": "to last token",
    "queue_ms": "queued",
}

QUANTILES = ("p50", "p95", "p99")

MEASURES = {
    "slowness": "iterations / law",
    "ttft_excess": "late first tokens",
    "rate": "rate / profile's",
    "input_length": "prompts / profile's",
    "output_length": "outputs / profile's",
    "prefix_share": "prefix share",
}

LONGER = 4
"""Times as long as the watch that was too short the next one is."""


@dataclass(frozen=True, slots=True)
class WatchResult:
    """All that is printed of a watch."""

    profile: str
    url: str
    reason: str
    watch: Watch
    missed: int
    """Scrapes that got no answer."""

    gaps: int
    """Stretches that are in no window."""

    restarts: int
    untold: Sequence[str]
    """The profile's arguments that the server does not tell."""

    warnings: Sequence[str]


class WatchProgress(CommandProgress):
    def __init__(self, for_s: float) -> None:
        super().__init__()
        self.for_s = for_s
        self.verdict = ""

    def __enter__(self) -> Self:
        super().__enter__()
        self.view.show("watching: the first window is not over yet", {}, at_once=True)
        return self

    def warn(self, text: str) -> None:
        self.console.print(f"[yellow]Warning:[/] {shown(text)}", soft_wrap=True)

    def say(self, text: str) -> None:
        print_line(self.console, text)

    def window(self, seen: WindowSummary, watch: Watch) -> None:
        verdict, load = watch.verdict, f"{_load(seen)} ({seen.promised_running:.1f})"
        token = f"{_ms(seen.gap_ms)} ms/token ({_ms(seen.promised_gap_ms)})"
        waiting = f", {seen.waiting:.0f} waiting" if seen.waiting >= 0.5 else ""
        slowdown = "" if seen.slowness is None else f", {seen.slowness:.2f}x"
        self.say(f"{seen.number}: {load}{waiting}, {token}{slowdown}")
        if verdict != self.verdict:
            self.say(f"{watch.windows}: {verdict}")
        self.verdict = verdict
        left_s = self.for_s - self.elapsed_s
        left = "until Ctrl-C" if left_s > 1e9 else minutes(max(0.0, left_s))
        rows = {"now": f"{load}{waiting}", "token": f"{token}{slowdown}", "left": left}
        self.view.show(f"window {watch.windows}: {verdict}", rows, at_once=True)


def _ms(time_ms: float | None) -> str:
    return TimeColumn("ms").shown(None if time_ms is None else time_ms / 1e3)


def _load(seen: WindowSummary) -> str:
    seconds = seen.end_s - seen.begin_s
    return f"{seen.arrived / seconds:.2f} req/s, {seen.running:.1f} running"


def json_of(result: WatchResult) -> Any:  # noqa: ANN401 - JSON content
    """Return the object that ``tuner watch --json`` prints."""
    watch = result.watch
    distances = {name: watch.lengths.distance(name) for name in LENGTHS}
    return plain(
        {
            "verdict": watch.verdict,
            "reason": result.reason,
            "profile": result.profile,
            "url": result.url,
            "max_num_seqs": watch.promised.max_num_seqs,
            "windows": watch.windows,
            "requests": watch.requests,
            "finished": watch.finished,
            "failed": watch.failed,
            "restarts": result.restarts,
            "missed_scrapes": result.missed,
            "gaps": result.gaps,
            "most_running": watch.most_running,
            "measures": {name: asdict(one) for name, one in watch.measures().items()},
            "distance": {name: one and asdict(one) for name, one in distances.items()},
            "choice": watch.choice and asdict(watch.choice),
            "times": watch.totals.ranges_ms(),
            "untold": list(result.untold),
            "warnings": list(result.warnings),
        }
    )


def render(result: WatchResult, profile: ServingProfile, options: WatchOptions) -> None:
    """Print the numbers, then the verdict and why."""
    console = console_for()
    if result.watch.windows:
        for table in (_measure_table(result.watch.measures()), _time_table(result.watch)):
            console.print(table)
            console.print()
    print_block(console, _block(result, profile, options))
    print_warnings(console, _notes(result), all_=True)


def _block(result: WatchResult, profile: ServingProfile, options: WatchOptions) -> VerdictBlock:
    """Return whether what runs may go on running, and why."""
    watch, choice = result.watch, result.watch.choice
    counted = f"{watch.windows} window{'s' * (watch.windows != 1)}"
    title = f"max_num_seqs {profile.decision.max_num_seqs}: {watch.verdict}"
    rows = [("why", result.reason)]
    if choice is not None:
        there = percent(choice.attainment)
        beside = f", {percent(choice.best_attainment)} with {choice.best} by the law itself"
        rows.append(("today", f"{there} in SLO by the twin{beside * (not choice.holds)}"))
        title = first_said(choice.attainment, title)
    rows.append(("seen", f"{watch.requests:,} requests at {result.url}, {counted}"))
    if watch.verdict == "re-tune now":
        rows.append(("re-tune", "run the command below, then capture a new trace and sweep"))
    aside = "simulated profile, " * is_simulated(profile) + counted
    return VerdictBlock(title, aside, rows, next_of(result, profile, options))


def next_of(result: WatchResult, profile: ServingProfile, options: WatchOptions) -> str:
    """Return what to run: a longer watch where that may tell more, else what shows the cause."""
    watch, path = result.watch, options.profile
    match watch.verdict:
        case _ if is_simulated(profile):
            return command("show", path)
        case "re-tune now" if watch.server_is_why:
            return command("diff", path, "--url", options.url)
        case "re-tune now" | "drifting":
            rate = watch.measures()["rate"].value
            load = 1.0 if rate is None or rate.value <= 0 else rate.value
            return command("plan", path, f"--load={load:.3g}")
        case "still valid":
            return command("show", path)
        case _:
            return asked_for("watch", _longer(options))


def _longer(options: WatchOptions) -> WatchOptions:
    if options.for_ == FOREVER:
        return options
    length_s = parse_duration_s(options.for_, option="--for")
    return replace(options, for_=f"{LONGER * length_s:g}s")


def _notes(result: WatchResult) -> list[str]:
    url, watch, notes = result.url, result.watch, []
    if watch.failed:
        share = watch.failed / max(1, watch.finished)
        notes.append(
            f"{url}: {watch.failed:,} requests ({share:.1%}) ended with an error or aborted: look "
            "into its log"
        )
    if result.restarts:
        times = "once" if result.restarts == 1 else f"{result.restarts} times"
        notes.append(f"{url}: was restarted {times}: look into its log")
    if result.missed or result.gaps:
        notes.append(
            f"{url}: {result.missed} scrapes got no answer; {result.gaps} stretches are in no "
            "window: watch from nearer to it"
        )
    return notes


def _measure_table(measures: Mapping[str, MonitorReading]) -> Table:
    table = plain_table(gap=2)
    for heading in ("", "mean", "95%", "limits", "minutes", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for name, one in measures.items():
        digits = ".1%" if name in SHARES else ".2f"
        value = one.value
        table.add_row(
            MEASURES[name],
            "-" if value is None else f"{value.value:{digits}}",
            "-" if value is None else f"{value.low:{digits}} to {value.high:{digits}}",
            limits(name, one),
            str(one.batches),
            f"[bold red]{one.state}[/]" if one.state in {"above", "below"} else one.state,
        )
    return table


def _time_table(watch: Watch) -> Table:
    """Return times over the whole watch; a quantile is the range that the buckets leave it."""
    times = watch.totals.ranges_ms()
    rows = [
        (words, kind, entry)
        for key, words in TIMES.items()
        for kind in ("counted", "promised")
        if (entry := times.get(key, {}).get(kind)) is not None
    ]
    ends_ms = [one for *_, entry in rows for name in QUANTILES for one in entry[name]]
    unit = TimeColumn.of(None if one is None else one / 1e3 for one in ends_ms)
    table = plain_table(gap=2)
    for number, heading in enumerate((unit.unit, "", "mean", *QUANTILES)):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for words, kind, entry in rows:
        mean = unit.shown(entry["mean"] / 1e3)
        table.add_row(words, kind, mean, *(_range(unit, *entry[name]) for name in QUANTILES))
    return table


def _range(unit: TimeColumn, low_ms: float | None, high_ms: float | None) -> str:
    begin, end = (unit.shown(None if one is None else one / 1e3) for one in (low_ms, high_ms))
    if low_ms == high_ms:
        return begin
    return f"> {begin}" if high_ms is None else f"{begin}-{end}"
