"""``tuner watch``: read its options, watch, and end with a verdict."""

import json
import math
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.commands.options import FOREVER, WatchOptions
from tuner.commands.shared.next_step import again, command
from tuner.commands.shared.results import finish, keep_result
from tuner.errors import (
    EngineError,
    GateError,
    InputError,
    Interrupted,
    TargetError,
    TunerError,
    UndecidedError,
    UsageError,
)
from tuner.live import server as live_server
from tuner.live.exporter import Exporter
from tuner.live.server import Clock, LiveServer, MonotonicClock, Reading
from tuner.live.watch import VERDICTS, Promised, Watch, WindowSummary, reason
from tuner.live.windows import WindowMaker
from tuner.profile.evidence import twin_of
from tuner.profile.profile import ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.profile.served_models import model_mismatch
from tuner.profile.summary import is_simulated
from tuner.rollout import difference
from tuner.system import files
from tuner.traffic.window import parse_duration_s
from tuner.views.live import Progress
from tuner.views.watch import WatchResult, rounded, watch_json, watch_page, window_line

GONE_S, GONE_READINGS = 60.0, 5
"""A server that has not answered for so long, and so often, is gone."""

STALLED_S = 120.0
"""A server in which requests run and no token comes for so long hangs."""

READINGS, MOST_EVERY_S = 30, 2.0
"""Of a window, and the longest time between two."""
WINDOWS_FILE = "windows.jsonl"

LONGER = 4
"""Times as long as the watch that was too short the next one is."""


def run(options: WatchOptions, *, clock: Clock | None = None) -> None:
    """Watch and print. Raises GateError, UndecidedError, Interrupted, EngineError and others."""
    every_s, window_s, for_s = _times_s(options)
    profile = load_profile(options.profile)
    watch = Watch(_promised(profile, options))
    live_server.read_engines(options.url)
    warnings, hidden = _before(profile, options)
    stopped: TunerError | None = None
    with ExitStack() as stack:
        exporter = None
        if options.metrics_port is not None:
            exporter = stack.enter_context(closing(Exporter(options.metrics_port)))
        session = Session(
            options, profile, watch, WindowMaker(window_s, every_s), exporter,
            stack.enter_context(Progress(for_s)),
        )  # fmt: skip
        session.write("begin", {"profile": str(options.profile), "url": options.url})
        for warning in warnings:
            session.progress.warn(warning)
        if hidden:
            session.progress.say(f"{options.url} does not export {', '.join(hidden)}")
        session.progress.say(
            "each window, predictions for its load in brackets, 1x is the law's speed:"
        )
        try:
            for reading in live_server.readings(
                options.url, every_s=every_s, for_s=for_s, clock=clock or MonotonicClock()
            ):  # fmt: skip
                session.take(reading)
            if watch.windows:
                watch.choose_again()
        except KeyboardInterrupt:
            stopped = Interrupted(
                f"interrupted; so far: {watch.verdict}",
                hint="Run the command again; windows that --run-dir has written stay.",
            )
        except TunerError as problem:
            stopped = problem
        result = WatchResult(
            profile=str(options.profile),
            url=options.url,
            watch=watch,
            windows=session.windows,
            missed=session.missed,
            gaps=session.maker.missed,
            restarts=session.maker.restarts,
            untold=hidden,
            warnings=warnings,
        )
        run_dir = str(options.run_dir or "")
        page = watch_page(result, profile, run_dir=run_dir, next_=_next(watch, profile, options))
        if options.run_dir is not None:
            with suppress(TargetError):  # a full disk was reported with the windows
                keep_result(options.run_dir, watch_json(result), page)
    finish(options, watch_json(result), page)
    if stopped is not None:
        raise stopped
    _raise_for(watch, options)


@dataclass(slots=True)
class Session:
    """A watch under way."""

    options: WatchOptions
    profile: ServingProfile
    watch: Watch
    maker: WindowMaker
    exporter: Exporter | None
    progress: Progress
    windows: list[WindowSummary] = field(default_factory=list)
    missed: int = 0
    """Readings without an answer."""

    journal: bytes = b""
    """All lines of windows.jsonl."""

    _missed_in_a_row: int = 0
    _answered_s: float | None = None
    _tokens: float | None = None
    _tokens_s: float = 0.0
    _models: tuple[str, ...] = ()
    _verdict: str = ""

    def take(self, reading: Reading) -> None:
        """Take a reading in. Raises EngineError for a server that is gone, hangs or serves another
        model, InputError where several servers answer at one address in turn, TargetError."""
        url, engines = self.options.url, reading.engines
        self._check_presence(reading)
        if not engines:
            self.progress.say(f"no answer from {url}: {reading.problem}")
            return
        restarts = self.maker.restarts
        window = self.maker.add(reading.at_s, engines)
        if self.maker.is_several:
            raise InputError(
                f"{url}: several servers answer in turn, each with its own counts",
                hint="Give the address of one replica, not the one that shares requests out.",
            )
        if self.maker.restarts > restarts:
            self.progress.say(f"{url} was restarted")
            _check_model(self.profile, self.options, _server(url))
        self._check_names(tuple(sorted({name for e in engines.values() for name in e.models})))
        if window is None:
            return
        summary, watch = self.watch.add(window), self.watch
        self.windows.append(summary)
        line = window_line(summary)
        self.progress.say(line)
        self.progress.show(f"window {watch.windows}: {watch.verdict}")
        if watch.verdict != self._verdict:
            self._verdict = watch.verdict
            self.progress.say(f"{watch.windows}: {watch.verdict}")
        self.write("window", asdict(summary) | {"verdict": watch.verdict, "beyond": watch.beyond})
        if self.exporter is not None:
            _export(self.exporter, watch)

    def _check_presence(self, reading: Reading) -> None:
        """Raise EngineError for a server that is gone or hangs."""
        at_s, engines = reading.at_s, reading.engines
        hint = "What was known until then stands above. Look at the server's log."
        if self._answered_s is None or engines:
            self._answered_s = at_s
        self.missed += not engines
        self._missed_in_a_row = 0 if engines else self._missed_in_a_row + 1
        if self._missed_in_a_row >= GONE_READINGS and at_s - self._answered_s >= GONE_S:
            raise EngineError(
                f"{self.options.url} does not answer any more: {reading.problem}", hint=hint
            )
        running = sum(engine.gauges.get("running", 0.0) for engine in engines.values())
        counts = [engine.counters.get("output_tokens") for engine in engines.values()]
        tokens = sum(count for count in counts if count is not None)
        if running <= 0 or None in counts or tokens != self._tokens:
            self._tokens, self._tokens_s = tokens, at_s
        elif at_s - self._tokens_s >= STALLED_S:
            raise EngineError(
                f"{self.options.url} hangs: {running:.0f} requests run and no token came for "
                f"{at_s - self._tokens_s:.0f} s",
                hint=hint,
            )

    def _check_names(self, names: tuple[str, ...]) -> None:
        if self._models and names not in {(), self._models}:
            raise EngineError(
                f"{self.options.url}: serves {', '.join(names)} now, {', '.join(self._models)} "
                "before",
                hint="What was known until then stands above. Watch it with that model's profile.",
            )
        self._models = self._models or names

    def write(self, event: str, content: dict[str, Any]) -> None:
        """Add a line to the journal; it is on disk when this returns. A watch that continues in a
        folder adds another ``begin``. Raises TargetError."""
        if self.options.run_dir is None:
            return
        path = self.options.run_dir / WINDOWS_FILE
        if not self.journal:
            files.make_own(self.options.run_dir)
            self.journal = files.content(path) or b""
        line = json.dumps(rounded({"event": event, **content}), allow_nan=False)
        self.journal += line.encode() + b"\n"
        files.write_own(path, self.journal)


def _export(exporter: Exporter, watch: Watch) -> None:
    for verdict in VERDICTS:
        exporter.set("watch_verdict", verdict == watch.verdict, verdict=verdict)
    for name, measure in watch.measures.items():
        exporter.set("watch_beyond", measure.is_beyond, measure=name)
        if (mean := measure.interval()) is not None:
            for bound, value in mean._asdict().items():
                exporter.set("watch_measure", value, measure=name, bound=bound)
    if watch.choice is not None:
        exporter.set("watch_choice_rightness", watch.choice.rightness)


def _times_s(options: WatchOptions) -> tuple[float, float, float]:
    """Return the gap between readings, the window and the length of the watch. Raises
    UsageError."""
    window_s = parse_duration_s(options.window, option="--window")
    every_s = min(MOST_EVERY_S, window_s / READINGS)
    for_s = math.inf if options.for_ == FOREVER else parse_duration_s(options.for_, option="--for")
    if for_s < window_s:
        raise UsageError(
            f"--for {options.for_}: shorter than one window of {options.window}",
            hint="A verdict takes several windows: --for 30m.",
        )
    return every_s, window_s, for_s


def _promised(profile: ServingProfile, options: WatchOptions) -> Promised:
    cure = "Sweep again; only a twin can predict what today's traffic should give."
    return Promised(
        twin=twin_of(profile, options.profile, cure=cure, behind=profile.front_end),
        slo=profile.decision.slo.slo,
        max_num_seqs=profile.decision.max_num_seqs,
        caps=tuple(step.max_num_seqs for step in profile.curve),
        headroom=profile.promise.headroom,
        validated_load=profile.validity.validated_load,
        arrival_rate_rps=profile.validity.arrival_rate_rps,
    )


def _before(profile: ServingProfile, options: WatchOptions) -> tuple[list[str], list[str]]:
    """Return warnings, and the profile's arguments that the server does not export. Raises
    InputError where it serves another model."""
    warnings = []
    if (ranks := profile.provenance.of_ranks) is not None:
        warnings.append(f"{ranks}: watch one rank's own address, a server's sum is another load")
    verdict = profile.decision.verdict
    if verdict in {"overloaded", "inconclusive"}:
        warnings.append(f"the profile's verdict is {verdict}: what it promises is little")
    here = _server(options.url)
    if here is None:
        return warnings, []
    if (doubt := _check_model(profile, options, here)) is not None:
        warnings.append(doubt)
    differences = difference.of_server(profile, here.arguments, here.version, source=options.url)
    differing = [
        f"{each.name} {each.other} and not {each.profile}"
        if each.section == "engine"
        else each.evidence
        for each in differences
    ]
    if differing:
        warnings.append(
            f"{options.url} runs {', '.join(differing)}: tuner show PROFILE URL lists them"
        )
    return warnings, difference.untold(profile, here.arguments, served=here.served)


def _check_model(
    profile: ServingProfile, options: WatchOptions, here: LiveServer | None
) -> str | None:
    """Raise InputError where the server was started with another model; return a doubt, in words,
    where it only gives its model another name."""
    mismatch = here and model_mismatch(profile, here.served)
    if not mismatch:
        return None
    if mismatch.is_sure:
        raise InputError(
            f"{options.url}: serves {mismatch.words}",
            hint=f"Give the profile that was made for {mismatch.served}, or another address.",
        )
    return f"{options.url} serves {mismatch.words}"


def _server(url: str) -> LiveServer | None:
    try:
        return live_server.ask(url)
    except InputError:  # a gateway may pass on nothing but /metrics, which was read
        return None


def _raise_for(watch: Watch, options: WatchOptions) -> None:
    match watch.verdict:
        case "re-tune now":
            raise GateError(f"re-tune now: {reason(watch)}", hint=_cure(watch, options))
        case "drifting" if options.fail_on == "drifting":
            hint = "The choice still holds as far as the twin can predict; tune again in time."
            raise GateError(f"drifting: {reason(watch)}", hint=hint)
        case "not enough evidence":
            hint = "Watch longer, or at a busier time: --for 2h."
            raise UndecidedError(f"not enough evidence: {reason(watch)}", hint=hint)
        case _:
            return


def _cure(watch: Watch, options: WatchOptions) -> str:
    if watch.server_is_why:
        return (
            "The traffic is not why: look for a neighbor, a power or clock limit, or another "
            f"configuration (tuner show {options.profile} {options.url})."
        )
    anew = "Capture today's traffic (docs/traces.md) and run tuner sweep on it."
    if watch.choice is not None and watch.choice.best_attainment < 0.5:
        return f"No cap serves half of it: tuner plan says how many replicas do. {anew}"
    return anew


def _next(watch: Watch, profile: ServingProfile, options: WatchOptions) -> str:
    """Return what to run: a longer watch where that may show more, else what shows the cause."""
    path = options.profile
    match watch.verdict:
        case "re-tune now" if watch.server_is_why and not is_simulated(profile):
            return command("show", path, options.url)
        case "re-tune now" | "drifting" if not is_simulated(profile):
            rate = watch.measures["rate"].interval()
            load = 1.0 if rate is None or rate.value <= 0 else rate.value
            return command("plan", path, f"--load={load:.3g}")
        case "not enough evidence" if options.for_ != FOREVER:
            length_s = parse_duration_s(options.for_, option="--for")
            return again("watch", replace(options, for_=f"{LONGER * length_s:g}s"))
        case _:
            return command("show", path)
