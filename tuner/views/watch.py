"""The page and the JSON of a watch. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.live.watch import Watch, WindowSummary, limits_in_words, reason, value_in_words
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import is_simulated, percent, with_share
from tuner.views.page import Cell, Chart, Column, Kind, Page, Section, Series, Table

LABELS = {
    "slowness": "iterations / law",
    "ttft_excess": "late first tokens",
    "rate": "rate / profile's",
    "input_length": "prompts / profile's",
    "output_length": "outputs / profile's",
    "prefix_share": "prefix share",
}
_Value = Callable[[WindowSummary], float | None]
CHARTS: tuple[tuple[str, Kind, _Value, _Value | None], ...] = (
    (
        "Decode time per token", "time", lambda window: _seconds(window.gap_ms),
        lambda window: _seconds(window.promised_gap_ms),
    ),
    ("Iteration time / law", "number", lambda window: window.slowness, None),
    (
        "Requests running", "count", lambda window: window.running,
        lambda window: window.promised_running,
    ),
    ("Requests waiting", "count", lambda window: window.waiting, None),
    ("KV cache in use", "share", lambda window: window.kv_cache_usage, None),
)  # fmt: skip
"""Title, unit, what was seen, and what the profile promises of it."""


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The result of a watch."""

    profile: str
    url: str
    watch: Watch
    windows: Sequence[WindowSummary]
    missed: int
    """Scrapes that got no answer."""
    gaps: int
    """Stretches that are in no window."""
    restarts: int
    untold: Sequence[str]
    """The profile's arguments that the server does not report."""
    warnings: Sequence[str]


def watch_page(result: WatchResult, profile: ServingProfile, *, run_dir: str, next_: str) -> Page:
    """Return whether the server may keep its profile, and why."""
    watch, choice = result.watch, result.watch.choice
    windows = f"{watch.windows} window{'s' * (watch.windows != 1)}"
    title = f"max_num_seqs {profile.decision.max_num_seqs}: {watch.verdict}"
    facts = [("why", reason(watch))]
    if choice is not None:
        best = f", {percent(choice.best_attainment)} with {choice.best}" * (not choice.holds)
        facts.append(("today", f"{percent(choice.attainment)} meet the SLO (predicted){best}"))
        title = with_share(choice.attainment, title)
    facts.append(("seen", f"{watch.requests:,} requests at {result.url}, {windows}"))
    if watch.verdict == "re-tune now":
        facts.append(("re-tune", "run the command below, then capture a new trace and sweep"))
    tables = [_measures(watch)] if watch.windows else []
    return Page(
        subject=f"Watch of {result.url}",
        title=title,
        aside="simulated profile, " * is_simulated(profile) + windows,
        facts=facts,
        sections=[Section("Windows", charts=_charts(result.windows), tables=tables)],
        warnings=[*_notes(result), *result.warnings],
        run_dir=run_dir,
        next=next_,
    )


def window_line(seen: WindowSummary) -> str:
    """Return a window in one line, predictions for its load in brackets."""
    rate = seen.arrived / (seen.end_s - seen.begin_s)
    parts = [
        f"{seen.number}: {rate:.2f} req/s, {seen.running:.1f} running ({seen.promised_running:.1f})"
    ]
    if seen.waiting >= 0.5:
        parts.append(f"{seen.waiting:.0f} waiting")
    if seen.gap_ms is not None:
        promised = seen.promised_gap_ms
        beside = "" if promised is None else f" ({promised:#.3g})"
        parts.append(f"{seen.gap_ms:#.3g} ms/token{beside}")
    if seen.slowness is not None:
        parts.append(f"{seen.slowness:.2f}x")
    return ", ".join(parts)


def watch_json(result: WatchResult) -> Any:  # noqa: ANN401 - JSON content
    """Return the object that ``tuner watch --json`` prints."""
    watch = result.watch
    measures = {
        name: {
            "state": measure.state,
            "value": (mean := measure.interval()) and mean._asdict(),
            "low": measure.low,
            "high": measure.high,
            "windows": measure.windows,
        }
        for name, measure in watch.measures.items()
    }
    return rounded(
        {
            "verdict": watch.verdict,
            "reason": reason(watch),
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
            "measures": measures,
            "choice": watch.choice and asdict(watch.choice),
            "untold": list(result.untold),
            "warnings": list(result.warnings),
        }
    )


def rounded(value: Any) -> Any:  # noqa: ANN401 - JSON content
    """Return JSON content with six digits, null for what is not a number."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _notes(result: WatchResult) -> list[str]:
    url, watch, notes = result.url, result.watch, []
    if watch.failed:
        share = percent(watch.failed / max(1, watch.finished))
        notes.append(f"{url}: {watch.failed:,} requests ({share}) failed or aborted: see its log")
    if result.restarts:
        notes.append(f"{url}: restarted {result.restarts} times: see its log")
    if result.missed or result.gaps:
        notes.append(
            f"{url}: {result.missed} scrapes got no answer; {result.gaps} stretches are in no "
            "window: watch from nearer to it"
        )
    return notes


def _charts(windows: Sequence[WindowSummary]) -> list[Chart]:
    if not windows:
        return []
    x = [round(window.end_s - windows[0].begin_s, 3) for window in windows]
    charts = []
    for title, kind, seen, promised in CHARTS:
        series = []
        if promised is not None:
            y = [promised(window) for window in windows]
            series.append(Series(x, y, name="promised", is_dashed=True))
        y = [seen(window) for window in windows]
        series.append(Series(x, y, name="seen" * (promised is not None), is_accent=True))
        charts.append(Chart(title, series, kind, x_label="seconds since the first window"))
    return charts


def _measures(watch: Watch) -> Table:
    columns = [
        Column("measure", "measure"), Column("mean", "mean"), Column("limits", "limits"),
        Column("windows", "windows", "count"), Column("state", "state"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            LABELS[name],
            value_in_words(name, measure) if measure.windows else None,
            limits_in_words(name, measure),
            measure.windows,
            measure.state,
        ]
        for name, measure in watch.measures.items()
    ]
    return Table(columns, rows)


def _seconds(time_ms: float | None) -> float | None:
    return None if time_ms is None else time_ms / 1e3
