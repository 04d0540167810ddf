"""``tuner watch``: read its options, watch, and end with a verdict."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

from tuner.commands.options import FOREVER, WatchOptions
from tuner.commands.shared.next_step import command
from tuner.commands.shared.run_folder import finish
from tuner.errors import (
    EngineError,
    GateError,
    InputError,
    Interrupted,
    TunerError,
    UndecidedError,
    UsageError,
)
from tuner.live import prometheus
from tuner.live import server as live_server
from tuner.live.prometheus import Exporter, ServerMetrics
from tuner.live.watch import VERDICTS, Watch
from tuner.profile.evidence import twin_of
from tuner.profile.profile import load as load_profile
from tuner.profile.served_models import model_mismatch
from tuner.profile.summary import is_simulated, percent, with_share
from tuner.traffic.window import parse_duration_s
from tuner.views.live import Progress
from tuner.views.page import Cell, Column, Page, Section, Table

GONE_S = 60.0
"""A server that has not answered for so long is gone."""

MOST_RESTARTS = 2
"""More than there are windows: a server that does so serves nobody, or is several."""

STALLED_S = 120.0
"""A server in which requests run and no token comes for so long hangs."""

READINGS, MOST_EVERY_S = 30, 2.0
"""Of a window, and the longest time between two and for one."""

COLUMNS = [
    Column("measure", "measure"),
    *(Column(name, name, "number") for name in ("mean", "low", "high", "least", "most")),
    Column("windows", "windows", "count"),
    Column("state", "state"),
]
LOOK = "What was known until then stands above. Look at the server's log."


def run(options: WatchOptions) -> None:
    """Watch and print. Raises GateError, UndecidedError, Interrupted, EngineError and others."""
    window_s = parse_duration_s(options.window, option="--window")
    for_s = math.inf if options.for_ == FOREVER else parse_duration_s(options.for_, option="--for")
    if for_s < window_s:
        raise UsageError(
            f"--for {options.for_}: shorter than one window of {options.window}",
            hint="A verdict takes several windows: --for 30m.",
        )
    profile, url, warnings = load_profile(options.profile), options.url, list[str]()
    cure = "Sweep again; only a twin can predict what today's traffic should give."
    twin = twin_of(profile, options.profile, cure=cure, behind=profile.front_end)
    watch = Watch(profile, twin, window_s, min(MOST_EVERY_S, window_s / READINGS))
    if (mismatch := model_mismatch(profile, live_server.ask(url).served)) is not None:
        if mismatch.is_sure:
            hint = f"Give the profile that was made for {mismatch.served}, or another address."
            raise InputError(f"{url}: serves {mismatch.words}", hint=hint)
        warnings.append(f"{url} serves {mismatch.words}")
    ended: TunerError | None = None
    try:
        _watch(watch, options, for_s, warnings)
    except KeyboardInterrupt:
        hint = "Run the command again."
        ended = Interrupted(f"interrupted; so far: {watch.verdict}", hint=hint)
    except TunerError as problem:
        ended = problem
    page = _page(watch, options, warnings)
    result = {
        "verdict": watch.verdict,
        "reason": watch.reason,
        "max_num_seqs": watch.cap,
        "windows": watch.windows,
        "requests": watch.requests,
        "restarts": watch.restarts,
        "measures": page.tables[0].records(),
        "best": watch.choice and watch.choice.best,
        "rightness": watch.rightness,
        "warnings": warnings,
    }
    finish(options, result, page)
    if (ended := ended or _ended(watch, options)) is not None:
        raise ended


def _watch(watch: Watch, options: WatchOptions, for_s: float, warnings: list[str]) -> None:
    """Take windows in until the time is over. Raises InputError for several servers, EngineError
    for one that is gone, hangs or serves another model."""
    with ExitStack() as stack:
        exporter = None
        if options.metrics_port is not None:
            exporter = stack.enter_context(closing(Exporter(options.metrics_port)))
        progress = stack.enter_context(Progress(for_s))
        progress.warn(*warnings)
        for at_s, metrics in _readings(options.url, watch.every_s, for_s, progress):
            window = watch.add(at_s, metrics)
            if watch.restarts > watch.windows + MOST_RESTARTS:
                raise InputError(
                    f"{options.url}: was restarted again and again, or several servers answer in "
                    "turn, each with its own counts",
                    hint="Give the address of one replica, not the one that shares them out.",
                )
            if window is not None:
                progress.say(window)
                progress.show(f"window {watch.windows}: {watch.verdict}")
            if window is not None and exporter is not None:
                for verdict in VERDICTS:
                    exporter.set("watch_verdict", verdict == watch.verdict, verdict=verdict)
                for name, measure in watch.measures.items():
                    exporter.set("watch_measure", measure.mean.value, measure=name)
                    exporter.set("watch_beyond", name in watch.beyond, measure=name)
                exporter.set("watch_choice_rightness", watch.rightness)
        watch.choose_again()


def _readings(
    url: str, every_s: float, for_s: float, progress: Progress
) -> Iterator[tuple[float, ServerMetrics]]:
    """Yield a time and what the server counted by then, until ``for_s`` have passed. Raises
    EngineError for a server that is gone, hangs or serves another model."""
    begin_s = answered_s = moved_s = time.monotonic()
    place, tokens, model = 0, -1.0, ""
    while place * every_s <= for_s:
        time.sleep(max(0.0, begin_s + place * every_s - time.monotonic()))
        sent_s = time.monotonic()
        try:
            metrics = live_server.read(url, timeout_s=MOST_EVERY_S)
        except InputError as problem:
            progress.say(f"no answer from {url}: {problem}")
            if time.monotonic() - answered_s >= GONE_S:
                raise EngineError(f"{url} does not answer any more: {problem}", hint=LOOK) from None
        else:
            answered_s, model = time.monotonic(), model or metrics.model
            if metrics.model != model:
                raise EngineError(f"{url}: serves {metrics.model} now, {model} before", hint=LOOK)
            if not metrics.get(prometheus.RUNNING) or metrics.get(prometheus.TOKENS) != tokens:
                tokens, moved_s = metrics.get(prometheus.TOKENS), answered_s
            elif answered_s - moved_s >= STALLED_S:
                why = f"{url} hangs: requests run and no token came for {STALLED_S:.0f} s"
                raise EngineError(why, hint=LOOK)
            yield (sent_s + answered_s) / 2, metrics
        place = max(place, int((time.monotonic() - begin_s) // every_s)) + 1


def _ended(watch: Watch, options: WatchOptions) -> TunerError | None:
    """Return the error that a verdict ends with."""
    words = f"{watch.verdict}: {watch.reason}"
    if watch.verdict == "not enough evidence":
        return UndecidedError(words, hint="Watch longer, or at a busier time: --for 2h.")
    if watch.verdict not in {"re-tune now", options.fail_on}:
        return None
    hint = "Capture today's traffic (docs/traces.md) and run tuner sweep on it."
    if "slowness" in watch.beyond:
        hint = "Look for a neighbor, a power or clock limit, or another configuration."
    return GateError(words, hint=hint)


def _page(watch: Watch, options: WatchOptions, warnings: list[str]) -> Page:
    """Return whether the server may keep its profile, why, and what shows the cause."""
    title, facts = f"max_num_seqs {watch.cap}: {watch.verdict}", [("why", watch.reason)]
    if watch.choice is not None:
        share = watch.choice.samples.middle("attainment", watch.cap)
        facts.append(("today", f"{percent(share)} meet the SLO (predicted)"))
        title = with_share(share, title)
    facts.append(("seen", f"{watch.requests:,} requests in {watch.windows} windows"))
    rows: list[list[Cell]] = [
        [name, *each.mean, each.low, each.high, len(each.values), each.state]
        for name, each in watch.measures.items()
    ]
    caption = "means with 95% intervals and limits: times the law, the profile's, or the cap"
    is_sim, rate = is_simulated(watch.profile), watch.measures["rate"].mean.value
    words = ["plan", options.profile, f"--load={rate if rate > 0 else 1.0:.3g}"]
    if is_sim or not watch.beyond:
        words = ["show", options.profile]
    elif "slowness" in watch.beyond:
        words = ["show", options.profile, options.url]
    return Page(
        subject=f"Watch of {options.url}",
        title=title,
        aside="simulated profile" * is_sim,
        facts=facts,
        sections=[Section("Windows", tables=[Table(COLUMNS, rows, caption)])],
        warnings=warnings,
        next=command(*words),
    )
