"""The output of ``tuner watch``: a line a window on stderr, what it found on stdout."""

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
from tuner.live.watch.canary import LOGARITHMIC, CanaryGate
from tuner.live.watch.drift import LENGTHS
from tuner.live.watch.journal import plain
from tuner.live.watch.verdict import MonitorReading, Watch
from tuner.live.watch.verdict_text import server_is_why
from tuner.live.watch.watched import WindowSummary
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
    "tpot": "time per output token",
    "ttft": "time to first token",
    "e2el_tail": "beyond E2EL tail",
    "failed": "failed",
    "preemptions": "preemptions / request",
}


@dataclass(frozen=True, slots=True)
class WatchResult:
    """All that is printed of a watch."""

    profile: str
    url: str
    canary: str | None
    verdict: str
    reason: str
    watches: Sequence[Watch]
    """The server's; with a canary the baseline's, and the canary's."""

    gate: CanaryGate | None
    missed: Sequence[int]
    """Scrapes that got no answer, of each server."""

    gaps: Sequence[int]
    """Stretches that are in no window."""

    restarts: Sequence[int]
    rolled_back: str | None
    untold: Sequence[str]
    """What the server does not tell of itself."""

    skipped: Sequence[str]
    """What is required and cannot be watched."""

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

    def missed(self, url: str, problem: str) -> None:
        self._line(f"no answer from {url}: {problem}")

    def say(self, text: str) -> None:
        self._line(text)

    def window(self, seen: WindowSummary, watch: Watch) -> None:
        slowdown = "-" if seen.slowness is None else f"{seen.slowness:.2f}"
        waiting = f", {seen.waiting:.0f} waiting" if seen.waiting >= 0.5 else ""
        self._line(
            f"{seen.number}: {_load(seen)} ({seen.promised_running:.1f}){waiting}, "
            f"{_ms(seen.gap_ms)} ms/token ({_ms(seen.promised_gap_ms)}), {slowdown}x"
        )
        self._live(watch.windows, watch.verdict, _now(seen))

    def pair(self, baseline: WindowSummary, canary: WindowSummary, gate: CanaryGate) -> None:
        self._line(f"{gate.pairs}: baseline {_load(baseline)}, {_ms(baseline.gap_ms)} ms/token")
        self._line(
            f"{' ' * len(str(gate.pairs))}  canary   {_load(canary)}, {_ms(canary.gap_ms)} ms/token"
        )
        self._live(gate.pairs, gate.decision, _now(canary))

    def _live(self, windows: int, verdict: str, now: Mapping[str, str]) -> None:
        if verdict != self.verdict:
            self._line(f"{windows}: {verdict}")
        self.verdict = verdict
        left_s = self.for_s - self.elapsed_s
        left = "until Ctrl-C" if left_s > 1e9 else minutes(max(0.0, left_s))
        self.view.show(f"window {windows}: {verdict}", {**now, "left": left}, at_once=True)

    def _line(self, text: str) -> None:
        print_line(self.console, text)


def _now(seen: WindowSummary) -> dict[str, str]:
    """Return the newest window for the live view, each number beside what was promised of it."""
    kv = "" if seen.kv_cache_usage is None else f", KV cache {100 * seen.kv_cache_usage:.0f} %"
    slowdown = "" if seen.slowness is None else f", {seen.slowness:.2f} times the law"
    running = f"{_load(seen)} (promised {seen.promised_running:.1f})"
    token = f"{_ms(seen.gap_ms)} ms (promised {_ms(seen.promised_gap_ms)})"
    return {"now": f"{running}, {seen.waiting:.0f} waiting{kv}", "token": f"{token}{slowdown}"}


def _ms(time_ms: float | None) -> str:
    return TimeColumn("ms").shown(None if time_ms is None else time_ms / 1e3)


def _load(seen: WindowSummary) -> str:
    seconds = seen.end_s - seen.begin_s
    return f"{seen.arrived / seconds:.2f} req/s, {seen.running:.1f} running"


def json_of(result: WatchResult) -> Any:  # noqa: ANN401 - JSON content
    """Return the object that ``tuner watch --json`` prints."""
    watch = result.watches[0]
    found: dict[str, Any] = {
        "verdict": result.verdict,
        "reason": result.reason,
        "profile": result.profile,
        "url": result.url,
        "canary": result.canary,
        "max_num_seqs": watch.promised.max_num_seqs,
        "windows": watch.windows,
        "requests": watch.requests,
        "measures": {name: asdict(one) for name, one in (result.gate or watch).measures().items()},
        "untold": list(result.untold),
        "warnings": list(result.warnings),
        "rolled_back": result.rolled_back,
        "servers": [
            {
                "requests": one.requests,
                "finished": one.finished,
                "failed": one.failed,
                "restarts": restarts,
                "missed_scrapes": missed,
                "gaps": gaps,
                "most_running": one.running.most,
                "times": one.totals.ranges_ms(),
            }
            for one, missed, gaps, restarts in zip(
                result.watches, result.missed, result.gaps, result.restarts, strict=True
            )
        ],
    }
    if result.gate is None:
        found["choice"] = None if watch.choice is None else asdict(watch.choice)
        found["traffic"] = _traffic(watch)
        found["required"] = [
            {"requirement": str(one.requirement), "state": one.state, "seen": one.seen}
            for one in watch.required
        ]
        found["not_watched"] = list(result.skipped)
    return plain(found)


def _traffic(watch: Watch) -> dict[str, Any]:
    burstiness = watch.traffic.burstiness()
    distances = {name: watch.traffic.distance(name) for name in LENGTHS}
    return {
        "rate_rps": watch.promised.reference.rate_rps,
        "distance": {name: one and asdict(one) for name, one in distances.items()},
        "burstiness": None
        if burstiness is None
        else dict(zip(("today", "profile"), burstiness, strict=True)),
    }


def render(result: WatchResult, profile: ServingProfile, options: WatchOptions) -> None:
    """Print the numbers, then the verdict and why."""
    console = console_for()
    watch = result.watches[0]
    if watch.windows if result.gate is None else result.gate.pairs:
        measures = watch.measures() if result.gate is None else result.gate.measures()
        console.print(_measure_table(measures))
        console.print()
        console.print(_time_table(result))
        console.print()
    print_block(console, _block(result, profile, options))
    print_warnings(console, _notes(result))
    if result.rolled_back is not None:
        console.print(shown(result.rolled_back))


def _block(result: WatchResult, profile: ServingProfile, options: WatchOptions) -> VerdictBlock:
    """Return whether what runs may go on running, and why."""
    watch, gate = result.watches[0], result.gate
    counted = f"{watch.windows} window{'s' * (watch.windows != 1)}"
    if gate is not None:
        counted = f"{gate.pairs} pair{'s' * (gate.pairs != 1)} of windows"
    choice = watch.choice if gate is None else None
    rows = [("why", result.reason)]
    if choice is not None:
        there = percent(choice.attainment)
        beside = f", {percent(choice.best_attainment)} with {choice.best} by the law itself"
        rows.append(("today", f"{there} in SLO by the twin{beside * (not choice.holds)}"))
    rows.append(("seen", f"{watch.requests:,} requests at {result.url}, {counted}"))
    if watch.required and gate is None:
        broken_first = sorted(watch.required, key=lambda one: one.state != "above")
        rows.append(("required", "; ".join(map(str, broken_first))))
    if result.verdict == "re-tune now":
        rows.append(("re-tune", "run the command below, then capture a new trace and sweep"))
    cap = f"max_num_seqs {profile.decision.max_num_seqs}"
    title = f"{cap}: {result.verdict}" if gate is None else f"{_told(result)} ({cap})"
    if choice is not None:
        title = first_said(choice.attainment, title)
    aside = "simulated profile, " * is_simulated(profile) + counted
    return VerdictBlock(title, aside, rows, next_of(result, profile, options))


def _told(result: WatchResult) -> str:
    """Return what is to be done with the canary, or was."""
    if result.rolled_back is not None:
        return "the canary was rolled back"
    words = {"promote": "promote the canary", "roll back": "roll the canary back"}
    return words.get(result.verdict, f"the canary is {result.verdict}")


LONGER = 4
"""Times as long a watch is that goes on where one was too short."""


def next_of(result: WatchResult, profile: ServingProfile, options: WatchOptions) -> str:
    """Return what to run: a longer watch where that may tell more, else what shows the cause."""
    path, file = options.profile, options.rollback
    ours = result.gate is not None or server_is_why(result.watches[0])
    match result.verdict:
        case _ if is_simulated(profile):
            words: list[object] = ["show", path]
        case _ if result.rolled_back is not None:
            words = ["diff", path, file]
        case "promote":
            words = ["apply", path, "--dry-run"]
        case "roll back" if file is not None:
            words = ["apply", "--rollback", file]
        case "roll back" | "re-tune now" if ours:
            words = ["diff", path, "--url", options.canary or options.url]
        case "re-tune now" | "drifting":
            words = ["plan", path, f"--load={_load_today(result):.3g}"]
        case "still valid":
            words = ["show", path]
        case _:
            return asked_for("watch", _longer(options))
    return command(*words)


def _longer(options: WatchOptions) -> WatchOptions:
    if options.for_ == FOREVER:
        return options
    length_s = parse_duration_s(options.for_, option="--for")
    return replace(options, for_=f"{LONGER * length_s:g}s")


def _load_today(result: WatchResult) -> float:
    """Return how many times as much arrives as the profile's traffic; 1 where that is unknown."""
    rate = result.watches[0].measures()["rate"].value
    return 1.0 if rate is None or rate.value <= 0 else rate.value


def _notes(result: WatchResult) -> list[str]:
    notes = []
    urls = [result.url, *([] if result.canary is None else [result.canary])]
    for url, watch, missed, gaps, restarts in zip(
        urls, result.watches, result.missed, result.gaps, result.restarts, strict=True
    ):
        if watch.failed:
            share = watch.failed / max(1, watch.finished)
            notes.append(
                f"{url}: {watch.failed:,} requests ({share:.1%}) ended with an error or aborted: "
                "look into its log"
            )
        if restarts:
            times = "once" if restarts == 1 else f"{restarts} times"
            notes.append(f"{url}: was restarted {times}: look into its log")
        if missed or gaps:
            notes.append(
                f"{url}: {missed} scrapes got no answer; {gaps} stretches are in no window: watch "
                "from nearer to it"
            )
    return notes


def _measure_table(measures: Mapping[str, MonitorReading]) -> Table:
    table = plain_table(gap=2)
    for heading in ("", "mean", "95 %", "limits", "windows", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for name, one in measures.items():
        digits = ".1%" if _is_share(name) else ".2f"
        value = one.value
        low = "" if one.low is None else f"{one.low:{digits}} to "
        table.add_row(
            MEASURES[name],
            "-" if value is None else f"{value.value:{digits}}",
            "-" if value is None else f"{value.low:{digits}} to {value.high:{digits}}",
            f"{low}{one.high:{digits}}",
            str(one.windows),
            f"[bold red]{one.state}[/]" if one.state in {"above", "below"} else one.state,
        )
    return table


def _is_share(name: str) -> bool:
    return name in {"ttft_excess", "prefix_share", "e2el_tail", "failed", "preemptions"} - set(
        LOGARITHMIC
    )


def _time_table(result: WatchResult) -> Table:
    """Return times over the whole watch; a quantile is the range that the buckets leave it."""
    entries = _times(result)
    times_ms = [one for _, _, told in entries for ends in told for one in ends]
    unit = TimeColumn.of(None if one is None else one / 1e3 for one in times_ms)
    table = plain_table(gap=2)
    for number, heading in enumerate((unit.unit, "", "mean", *QUANTILES)):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for words, label, told in entries:
        table.add_row(words, label, *(_range(unit, *ends) for ends in told))
    return table


Ends = tuple[float | None, float | None]
"""Of a time in ms."""


def _times(result: WatchResult) -> list[tuple[str, str, list[Ends]]]:
    """Return of every time what it is of, whose, and its mean and quantiles."""
    found: list[tuple[str, str, list[Ends]]] = []
    names = ["counted"] if result.gate is None else ["baseline", "canary"]
    for watch, who in zip(result.watches, names, strict=True):
        times: Mapping[str, Any] = watch.totals.ranges_ms()
        for key, words in TIMES.items():
            for kind, label in (("counted", who), ("promised", "promised")):
                entry = times.get(key, {}).get(kind)
                if entry is not None:
                    mean = (entry["mean"], entry["mean"])
                    told = [mean, *((low, high) for low, high in map(entry.get, QUANTILES))]
                    found.append((words, label, told))
    return found


def _range(unit: TimeColumn, low: float | None, high: float | None) -> str:
    """Return a time in ms that lies between these ends."""
    begin, end = (unit.shown(None if one is None else one / 1e3) for one in (low, high))
    if low == high:
        return begin
    return f"> {begin}" if high is None else f"{begin}-{end}"
