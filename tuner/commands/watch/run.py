"""``tuner watch``: read its options, watch, and end with a verdict."""

import math
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field

from tuner.commands.shared.output import print_json
from tuner.commands.shared.promise import twin_of
from tuner.commands.watch.options import FOREVER, WatchOptions
from tuner.commands.watch.view import WatchProgress, WatchResult, json_of, next_of, render
from tuner.errors import (
    EngineError,
    GateError,
    InputError,
    Interrupted,
    RunError,
    TunerError,
    UndecidedError,
    UsageError,
)
from tuner.live import server as live_server
from tuner.live.exporter import WatchExporter
from tuner.live.server import LiveServer
from tuner.live.watch.journal import WindowJournal
from tuner.live.watch.scraper import (
    Absence,
    Clock,
    MonotonicClock,
    Scrape,
    ScrapedServer,
    Stall,
    scrapes,
)
from tuner.live.watch.traffic import reference
from tuner.live.watch.verdict import Promised, Watch
from tuner.live.watch.verdict_text import reason
from tuner.live.watch.windows import KEPT_STEPS, WindowMaker
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import model_mismatch
from tuner.rollout import difference
from tuner.traffic.window import parse_duration_s

LEAST_STEPS = 2
RUN_IN_S = 60.0
"""Of scrapes before a window that the twin is given too, so that it begins as full as the server;
at least the length of a window."""


def run(options: WatchOptions, *, clock: Clock | None = None) -> None:
    """Watch and print. Raises GateError, UndecidedError, Interrupted, EngineError and others."""
    times = times_of(options)
    profile = load_profile(options.profile)
    promised = promised_of(profile, options)
    server = ScrapedServer(options.url, options.served_model)
    server.read()
    warnings, untold = beforehand(profile, server, options)
    stopped: TunerError | None = None
    with ExitStack() as stack:
        session = Session(
            options=options,
            profile=profile,
            server=server,
            watch=Watch(promised),
            maker=WindowMaker(times.window_s, times.every_s, max(RUN_IN_S, times.window_s)),
            absence=Absence(times.every_s),
            progress=stack.enter_context(WatchProgress(times.for_s)),
            journal=_journal(options, stack),
            exporter=_exporter(options, stack),
        )
        for warning in warnings:
            session.progress.warn(warning)
        if untold:
            session.progress.say(f"{options.url} does not tell {', '.join(untold)}")
        session.progress.say(
            "each window, predictions for its load in brackets, 1x is the law's speed:"
        )
        try:
            session.go(times, clock or MonotonicClock())
        except KeyboardInterrupt:
            stopped = Interrupted(
                f"interrupted; so far: {session.watch.verdict}",
                hint="Run the command again; windows that --run-dir has written stay.",
            )
        except TunerError as problem:
            stopped = problem
        result = WatchResult(
            profile=str(options.profile),
            url=options.url,
            reason=reason(session.watch),
            watch=session.watch,
            missed=session.absence.missed,
            gaps=session.maker.missed,
            restarts=session.maker.restarts,
            untold=untold,
            warnings=warnings,
        )
        if session.journal is not None:
            end = {"verdict": result.watch.verdict, "reason": result.reason}
            with suppress(RunError):  # a full disk was reported with the windows
                session.journal.append("end", end | {"next": next_of(result, profile, options)})
    if options.json:
        print_json(json_of(result))
    else:
        render(result, profile, options)
    if stopped is not None:
        raise stopped
    _raise_for(result, options)


@dataclass(slots=True)
class Session:
    """A watch as it goes on."""

    options: WatchOptions
    profile: ServingProfile
    server: ScrapedServer
    watch: Watch
    maker: WindowMaker
    absence: Absence
    progress: WatchProgress
    journal: WindowJournal | None
    exporter: WatchExporter | None
    stall: Stall = field(default_factory=Stall)
    models: tuple[str, ...] = ()
    """The names by which the server counts."""

    def go(self, times: "Times", clock: Clock) -> None:
        """Watch until the time is over. Raises EngineError, InputError, RunError."""
        for scrape in scrapes(self.server, every_s=times.every_s, for_s=times.for_s, clock=clock):
            self.take(scrape)
        if self.watch.windows:
            self.watch.ask()

    def take(self, scrape: Scrape) -> None:
        """Take a scrape in. Raises EngineError for a server that is gone, hangs or serves another
        model, InputError where several servers answer at one address in turn."""
        url, engines = self.server.url, scrape.engines
        if self.absence.add(scrape):
            raise _gone(f"{url} does not answer any more: {self.absence.problem}")
        if engines is None:
            self.progress.say(f"no answer from {url}: {scrape.problem}")
            return
        if problem := self.stall.add(scrape.at_s, engines):
            raise _gone(f"{url} hangs: {problem}")
        restarts = self.maker.restarts
        window = self.maker.add(scrape.at_s, engines)
        if self.maker.is_several:
            raise InputError(
                f"{url}: several servers answer in turn, each with its own counts",
                hint="Give the address of one replica, not the one that shares requests out.",
            )
        if self.maker.restarts > restarts:
            self.progress.say(f"{url} was restarted")
            check_model(self.profile, self.server, self.options)
        self._check_names(tuple(sorted({name for one in engines.values() for name in one.models})))
        if window is None:
            return
        seen = self.watch.add(window)
        self.progress.window(seen, self.watch)
        if self.journal is not None:
            verdict = {"verdict": self.watch.verdict, "beyond": self.watch.beyond}
            self.journal.append("window", {**asdict(seen), **verdict})
        if self.exporter is not None:
            self.exporter.show(self.watch)

    def _check_names(self, names: tuple[str, ...]) -> None:
        if self.server.model is None and self.models and names and names != self.models:
            raise EngineError(
                f"{self.server.url}: serves {', '.join(names)} now, {', '.join(self.models)} "
                "before",
                hint="What was known until then stands above. Watch it with that model's profile.",
            )
        self.models = self.models or names


def _gone(message: str) -> EngineError:
    hint = "What was known until then stands above. Look at the server's log."
    return EngineError(message, hint=hint)


def _journal(options: WatchOptions, stack: ExitStack) -> WindowJournal | None:
    if options.run_dir is None:
        return None
    journal = stack.enter_context(closing(WindowJournal(options.run_dir)))
    journal.append("begin", {"profile": str(options.profile), "url": options.url})
    return journal


def _exporter(options: WatchOptions, stack: ExitStack) -> WatchExporter | None:
    if options.metrics_port is None:
        return None
    return stack.enter_context(closing(WatchExporter(options.metrics_port)))


def _raise_for(result: WatchResult, options: WatchOptions) -> None:
    match result.watch.verdict:
        case "re-tune now":
            raise GateError(f"re-tune now: {result.reason}", hint=_cure(result.watch, options))
        case "drifting" if options.fail_on == "drifting":
            raise GateError(
                f"drifting: {result.reason}",
                hint="The choice still holds as far as the twin can predict; tune again in time.",
            )
        case "not enough evidence":
            raise UndecidedError(
                f"not enough evidence: {result.reason}",
                hint="Watch longer, or at a busier time: --for 2h.",
            )
        case _:
            return


def _cure(watch: Watch, options: WatchOptions) -> str:
    if watch.server_is_why:
        return (
            "The traffic is not why: look for a neighbour, a power or clock limit, or another "
            f"configuration (tuner diff {options.profile} --url {options.url})."
        )
    again = "Capture today's traffic (docs/traces.md) and run tuner sweep on it."
    if watch.choice is not None and watch.choice.best_attainment < 0.5:
        return f"No cap serves half of it: tuner plan says how many replicas do. {again}"
    return again


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a watch, in seconds: its length, the gap between scrapes, the window."""

    for_s: float
    every_s: float
    window_s: float


def times_of(options: WatchOptions) -> Times:
    """Return the times of a watch in seconds. Raises UsageError."""
    every_s = parse_duration_s(options.every, option="--every")
    window_s = parse_duration_s(options.window, option="--window")
    for_s = math.inf if options.for_ == FOREVER else parse_duration_s(options.for_, option="--for")
    if window_s < LEAST_STEPS * every_s:
        raise UsageError(
            f"--window {options.window}: less than {LEAST_STEPS} times --every {options.every}",
            hint="A window needs several readings: --every 2s --window 10s.",
        )
    if for_s < window_s:
        raise UsageError(
            f"--for {options.for_}: shorter than one window of {options.window}",
            hint="A verdict takes a dozen windows at least: --for 30m.",
        )
    least_s = (max(RUN_IN_S, window_s) + window_s) / (KEPT_STEPS - 1)
    if every_s < least_s:
        raise UsageError(
            f"--every {options.every}: more readings than a watch remembers of --window "
            f"{options.window}",
            hint=f"Give --every {math.ceil(least_s)}s, or a shorter --window.",
        )
    return Times(for_s, every_s, window_s)


def promised_of(profile: ServingProfile, options: WatchOptions) -> Promised:
    """Return what is watched. Raises ProfileError for a profile without a twin."""
    cure = "Sweep again; only a twin can predict what today's traffic should give."
    twin = twin_of(profile, options.profile, cure=cure, front_end=profile.front_end)
    return Promised(
        twin=twin,
        slo=profile.decision.slo.slo,
        max_num_seqs=profile.decision.max_num_seqs,
        caps=tuple(step.max_num_seqs for step in profile.curve),
        headroom=profile.promise.headroom,
        reference=reference(
            twin,
            captured_rps=profile.validity.arrival_rate_rps,
            validated_load=profile.validity.validated_load,
            headroom=profile.promise.headroom,
        ),
        tolerance=options.tolerance,
    )


def beforehand(
    profile: ServingProfile, server: ScrapedServer, options: WatchOptions
) -> tuple[list[str], list[str]]:
    """Return warnings, and the profile's arguments that the server does not tell. Raises InputError
    where it serves another model."""
    warnings = []
    if (ranks := profile.provenance.of_ranks) is not None:
        warnings.append(f"{ranks}: watch one rank's own address, a server's sum is another load")
    verdict = profile.decision.verdict
    if verdict in {"overloaded", "inconclusive"}:
        warnings.append(f"the profile's verdict is {verdict}: what it promises is little")
    here = _asked(server)
    if here is None:
        return warnings, []
    if (doubt := check_model(profile, server, options, here)) is not None:
        warnings.append(doubt)
    others = difference.of_server(profile, here.arguments, here.version, source=server.url)
    shown = [
        f"{one.name} {one.other} and not {one.profile}" if one.section == "engine" else one.evidence
        for one in others
    ]
    if shown:
        warnings.append(f"{server.url} runs {', '.join(shown)}: tuner diff says more")
    return warnings, difference.untold(profile, here.arguments, served=here.served)


def check_model(
    profile: ServingProfile,
    server: ScrapedServer,
    options: WatchOptions,
    here: LiveServer | None = None,
) -> str | None:
    """Raise InputError where the server was started with another model; return a doubt, in words,
    where it only gives its model another name."""
    here = _asked(server) if here is None else here
    if here is None:
        return None
    other = model_mismatch(profile, here.served, model=options.served_model)
    if other is None:
        return None
    if other.is_sure:
        raise InputError(
            f"{server.url}: serves {other.words}",
            hint=f"Give the profile that was made for {other.found}, or another address.",
        )
    return f"{server.url} serves {other.words}"


def _asked(server: ScrapedServer) -> LiveServer | None:
    try:
        return live_server.ask(server.url)
    except InputError:  # a gateway may pass on nothing but /metrics, which was read
        return None
