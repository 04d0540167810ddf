"""``tuner watch``: read its options, watch, and end with a verdict."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

from tuner.commands.options import FOREVER, WatchOptions
from tuner.commands.shared.next_step import command
from tuner.commands.shared.results import finish
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
from tuner.live.server import LiveServer
from tuner.live.watch import VERDICTS, Watch
from tuner.profile.evidence import twin_of
from tuner.profile.profile import ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.profile.served_models import model_mismatch
from tuner.profile.summary import is_simulated
from tuner.traffic.window import parse_duration_s
from tuner.views.live import Progress
from tuner.views.watch import watch_page

GONE_S = 60.0
"""A server that has not answered for so long is gone."""

MOST_RESTARTS = 2
"""More than there are windows: a server that does so serves nobody, or is several."""

STALLED_S = 120.0
"""A server in which requests run and no token comes for so long hangs."""

READINGS, MOST_EVERY_S, LEAST_TIMEOUT_S = 30, 2.0, 1.0
"""Of a window, the longest time between two, and the shortest for one."""


def run(options: WatchOptions) -> None:
    """Watch and print. Raises GateError, UndecidedError, Interrupted, EngineError and others."""
    window_s = parse_duration_s(options.window, option="--window")
    for_s = math.inf if options.for_ == FOREVER else parse_duration_s(options.for_, option="--for")
    if for_s < window_s:
        raise UsageError(
            f"--for {options.for_}: shorter than one window of {options.window}",
            hint="A verdict takes several windows: --for 30m.",
        )
    profile, url = load_profile(options.profile), options.url
    cure = "Sweep again; only a twin can predict what today's traffic should give."
    twin = twin_of(profile, options.profile, cure=cure, behind=profile.front_end)
    watch = Watch(profile, twin, window_s, min(MOST_EVERY_S, window_s / READINGS))
    here = live_server.ask(url)
    warnings = _doubts(profile, here, url)
    stopped = _watched(watch, here, options, for_s, warnings)
    if watch.restarts:
        warnings.append(f"{url}: restarted {watch.restarts} times: see its log")
    page = watch_page(watch, url=url, warnings=warnings, next_=_next(watch, options))
    result = {
        "verdict": watch.verdict,
        "reason": watch.reason,
        "profile": str(options.profile),
        "url": url,
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
    if stopped is not None:
        raise stopped
    _raise_for(watch, options)


def _watched(
    watch: Watch, here: LiveServer, options: WatchOptions, for_s: float, warnings: list[str]
) -> TunerError | None:
    """Take windows in until the time is over; return what ended it before."""
    with ExitStack() as stack:
        exporter = None
        if options.metrics_port is not None:
            exporter = stack.enter_context(closing(Exporter(options.metrics_port)))
        progress = stack.enter_context(Progress(for_s))
        for warning in warnings:
            progress.warn(warning)
        try:
            for at_s, metrics in _readings(options.url, watch.every_s, for_s, progress):
                window = watch.add(at_s, metrics)
                if watch.restarts > watch.windows + MOST_RESTARTS:
                    raise InputError(
                        f"{options.url}: was restarted again and again, or several servers answer "
                        "in turn, each with its own counts",
                        hint="Give the address of one replica, not the one that shares them out.",
                    )
                if metrics.model != here.metrics.model:
                    raise EngineError(
                        f"{options.url}: serves {metrics.model} now, {here.metrics.model} before",
                        hint="Watch it with the profile of that model.",
                    )
                if window is not None:
                    progress.say(window)
                    progress.show(f"window {watch.windows}: {watch.verdict}")
                    if exporter is not None:
                        _export(exporter, watch)
            watch.choose_again()
        except KeyboardInterrupt:
            so_far = f"interrupted; so far: {watch.verdict}"
            return Interrupted(so_far, hint="Run the command again.")
        except TunerError as problem:
            return problem
    return None


def _readings(
    url: str, every_s: float, for_s: float, progress: Progress
) -> Iterator[tuple[float, ServerMetrics]]:
    """Yield a time and what the server counted by then, until ``for_s`` have passed. Raises
    EngineError for a server that is gone or hangs."""
    timeout_s = min(live_server.TIMEOUT_S, max(LEAST_TIMEOUT_S, every_s))
    begin_s = answered_s = moved_s = time.monotonic()
    place, tokens = 0, -1.0
    hint = "What was known until then stands above. Look at the server's log."
    while place * every_s <= for_s:
        time.sleep(max(0.0, begin_s + place * every_s - time.monotonic()))
        sent_s = time.monotonic()
        try:
            metrics = live_server.read(url, timeout_s=timeout_s)
        except InputError as problem:
            progress.say(f"no answer from {url}: {problem}")
            if time.monotonic() - answered_s >= GONE_S:
                why = f"{url} does not answer any more: {problem}"
                raise EngineError(why, hint=hint) from None
        else:
            answered_s = time.monotonic()
            if not metrics.get(prometheus.RUNNING) or metrics.get(prometheus.TOKENS) != tokens:
                tokens, moved_s = metrics.get(prometheus.TOKENS), answered_s
            elif answered_s - moved_s >= STALLED_S:
                why = f"{url} hangs: requests run and no token came for {STALLED_S:.0f} s"
                raise EngineError(why, hint=hint)
            yield (sent_s + answered_s) / 2, metrics
        place = max(place, int((time.monotonic() - begin_s) // every_s)) + 1


def _export(exporter: Exporter, watch: Watch) -> None:
    for verdict in VERDICTS:
        exporter.set("watch_verdict", verdict == watch.verdict, verdict=verdict)
    for name, measure in watch.measures.items():
        exporter.set("watch_beyond", name in watch.beyond, measure=name)
        exporter.set("watch_measure", measure.mean.value, measure=name)
    exporter.set("watch_choice_rightness", watch.rightness)


def _doubts(profile: ServingProfile, here: LiveServer, url: str) -> list[str]:
    """Return doubts about the profile and the server's model. Raises InputError where the server
    was started with another one."""
    warnings, verdict = list[str](), profile.decision.verdict
    if verdict in {"overloaded", "inconclusive"}:
        warnings.append(f"the profile's verdict is {verdict}: what it promises is little")
    mismatch = model_mismatch(profile, here.served)
    if mismatch is not None and mismatch.is_sure:
        raise InputError(
            f"{url}: serves {mismatch.words}",
            hint=f"Give the profile that was made for {mismatch.served}, or another address.",
        )
    return warnings + ([f"{url} serves {mismatch.words}"] if mismatch is not None else [])


def _raise_for(watch: Watch, options: WatchOptions) -> None:
    verdict, reason = watch.verdict, watch.reason
    if verdict == "not enough evidence":
        hint = "Watch longer, or at a busier time: --for 2h."
        raise UndecidedError(f"{verdict}: {reason}", hint=hint)
    if verdict == "re-tune now" or (verdict == "drifting" and options.fail_on == "drifting"):
        hint = "Capture today's traffic (docs/traces.md) and run tuner sweep on it."
        if "slowness" in watch.beyond:
            hint = "Look for a neighbor, a power or clock limit, or another configuration."
        raise GateError(f"{verdict}: {reason}", hint=hint)


def _next(watch: Watch, options: WatchOptions) -> str:
    """Return what shows the cause."""
    if is_simulated(watch.profile) or watch.verdict in {"still valid", "not enough evidence"}:
        return command("show", options.profile)
    if "slowness" in watch.beyond:
        return command("show", options.profile, options.url)
    rate = watch.measures["rate"].mean.value
    return command("plan", options.profile, f"--load={rate if rate > 0 else 1.0:.3g}")
