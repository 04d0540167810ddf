"""``tuner watch``: read its options, watch, end, and roll back where asked to."""

import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from tuner.commands.shared.promise import required_of, twin_of
from tuner.commands.watch.options import FOREVER, WatchOptions
from tuner.commands.watch.session import Times, WatchSession, side_of
from tuner.commands.watch.view import WatchProgress, WatchResult, json_of, next_of, render
from tuner.errors import (
    EngineError,
    GateError,
    InputError,
    Interrupted,
    RunError,
    TargetError,
    TunerError,
    UndecidedError,
    UsageError,
)
from tuner.live import server as live_server
from tuner.live.exporter import WatchExporter
from tuner.live.server import LiveServer
from tuner.live.watch.canary import CanaryGate
from tuner.live.watch.drift import reference
from tuner.live.watch.journal import WindowJournal
from tuner.live.watch.promised import Promised, speed_sd_of
from tuner.live.watch.required import why_not
from tuner.live.watch.scraper import Clock, MonotonicClock, ScrapedServer, moments
from tuner.live.watch.verdict_text import server_is_why
from tuner.live.watch.windows import KEPT_STEPS
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import model_mismatch
from tuner.rollout import backup, difference
from tuner.traffic.requirements import Requirement
from tuner.traffic.window import parse_duration_s

LEAST_STEPS = 2
VERDICTS = ("still valid", "drifting", "re-tune now", "not enough evidence")
DECISIONS = ("promote", "roll back", "undecided")


def run(options: WatchOptions, *, clock: Clock | None = None) -> None:
    """Watch and print. Raises GateError, UndecidedError, Interrupted, EngineError and others."""
    times = times_of(options)
    profile = load_profile(options.profile)
    promised = promised_of(profile, options)
    if options.rollback is not None:
        backup.check_can_go_back(options.rollback, profile=profile.digest)
    servers = [ScrapedServer(options.url, options.served_model)]
    if options.canary is not None:
        servers.append(ScrapedServer(options.canary, options.served_model, option="--canary"))
    for server in servers:
        server.read()
    known = beforehand(profile, servers, options)
    stopped: TunerError | None = None
    with ExitStack() as kept, ExitStack() as stack:
        session = WatchSession(
            sides=[side_of(server, promised, times, options.seed) for server in servers],
            gate=None if options.canary is None else CanaryGate(promised),
            progress=WatchProgress(times.for_s),
            journal=_journal(options, kept),
            exporter=_exporter(options, stack),
            ends_early=options.rollback is not None,
            check_again=lambda server: check_model(profile, server, options),
            warnings=known.warnings,
            untold=known.untold,
            skipped=known.skipped,
        )
        stack.enter_context(session.progress)
        if options.rollback is not None:
            session.progress.say(f"{options.rollback} can be restored, and will be where it is due")
        try:
            session.begin()
            _go(session, times, clock or MonotonicClock())
        except KeyboardInterrupt:
            stopped = Interrupted(
                f"interrupted; so far: {session.verdict}",
                hint="Run the command again; windows that --run-dir has written stay.",
            )
        except TunerError as problem:
            stopped = problem
        stack.close()
        _end(session, options, stopped, profile)


def _journal(options: WatchOptions, stack: ExitStack) -> WindowJournal | None:
    if options.run_dir is None:
        return None
    journal = stack.enter_context(closing(WindowJournal(options.run_dir)))
    journal.append("begin", {"profile": str(options.profile), "url": options.url})
    return journal


def _exporter(options: WatchOptions, stack: ExitStack) -> WatchExporter | None:
    if options.metrics_port is None:
        return None
    names = VERDICTS if options.canary is None else DECISIONS
    return stack.enter_context(closing(WatchExporter(options.metrics_port, names)))


def _go(session: WatchSession, times: Times, clock: Clock) -> None:
    servers = [side.server for side in session.sides]
    for moment in moments(servers, every_s=times.every_s, for_s=times.for_s, clock=clock):
        if session.take(moment):
            break
    if session.gate is None and session.sides[0].watch.windows:
        session.sides[0].watch.ask()


def _end(
    session: WatchSession,
    options: WatchOptions,
    stopped: TunerError | None,
    profile: ServingProfile,
) -> None:
    """Print what is known, roll back where that is due, and raise what the exit code says."""
    rolled_back = None if stopped is not None else _rolled_back(session, options, profile.digest)
    result = WatchResult(
        profile=str(options.profile),
        url=options.url,
        canary=options.canary,
        verdict=session.verdict,
        reason=session.reason,
        watches=[side.watch for side in session.sides],
        gate=session.gate,
        missed=[side.absence.missed for side in session.sides],
        gaps=[side.maker.missed for side in session.sides],
        restarts=[side.maker.restarts for side in session.sides],
        rolled_back=rolled_back,
        untold=session.untold,
        skipped=session.skipped,
        warnings=session.warnings,
    )
    if session.journal is not None:
        said = {"verdict": result.verdict, "reason": result.reason}
        with suppress(RunError):  # of a disk that is full the windows have said so
            session.journal.append("end", said | {"next": next_of(result, profile, options)})
    if options.json:
        sys.stdout.write(json.dumps(json_of(result), allow_nan=False) + "\n")
    else:
        render(result, profile, options)
    if stopped is not None:
        raise stopped
    if session.gone:
        raise EngineError(
            f"{options.url} {session.gone}",
            hint="What was known until then stands above. Look at the server's log.",
        )
    _raise_for(session, options, rolled_back)


def _raise_for(session: WatchSession, options: WatchOptions, rolled_back: str | None) -> None:
    match session.verdict:
        case "re-tune now":
            raise GateError(
                f"re-tune now: {session.reason}", hint=_cure(session, options, rolled_back)
            )
        case "drifting" if options.fail_on == "drifting":
            raise GateError(
                f"drifting: {session.reason}",
                hint="The choice still holds as far as the twin can say; tune again when it fits.",
            )
        case "roll back":
            raise GateError(
                f"roll back: {session.reason}", hint=rolled_back or _roll_back_hint(options)
            )
        case "undecided":
            raise UndecidedError(
                f"undecided: {session.reason}", hint="Watch longer: --for 2h, or send it more."
            )
        case "not enough evidence":
            raise UndecidedError(
                f"not enough evidence: {session.reason}",
                hint="Watch longer, or at a busier time: --for 2h.",
            )
        case _:
            return


def _cure(session: WatchSession, options: WatchOptions, rolled_back: str | None) -> str:
    if rolled_back is not None:
        return rolled_back
    watch = session.sides[0].watch
    if server_is_why(watch):
        return (
            "The traffic is not why: look for a neighbour, a power or clock limit, or another "
            f"configuration (tuner diff {options.profile} --url {options.url})."
        )
    choice = watch.choice
    again = "Capture today's traffic (docs/capture.md) and run tuner sweep on it."
    if choice is not None and choice.best_attainment < 0.5:
        return f"No cap serves half of it: tuner plan says how many replicas do. {again}"
    return again


def _roll_back_hint(options: WatchOptions) -> str:
    if options.rollback is not None:
        return f"tuner apply --rollback {options.rollback}"
    return "tuner apply --rollback FILE, with the file that the canary was deployed from."


def _rolled_back(session: WatchSession, options: WatchOptions, digest: str) -> str | None:
    """Restore the file where the canary failed or the server broke the promise; say what was done.

    Other traffic is no reason: what ran before was not tuned for it either.
    """
    path = options.rollback
    due = session.verdict == "roll back" or (
        session.verdict == "re-tune now" and server_is_why(session.sides[0].watch)
    )
    if path is None or not due:
        return None
    try:
        backup.check_can_go_back(path, profile=digest)  # it may have been edited meanwhile
        outcome = backup.roll_back(path, force=False)
    except TargetError as problem:
        return f"{path} was not restored: {problem}. {problem.hint}"
    return f"{path}: {outcome}; now let the deployment take it up."


def times_of(options: WatchOptions) -> Times:
    """Return the times of a watch in seconds. Raises UsageError, also for what cannot be both."""
    if options.canary is not None and options.fail_on != "re-tune":
        raise UsageError(
            f"--fail-on {options.fail_on} and --canary exclude each other",
            hint="A canary is promoted, rolled back or undecided: it exits with 0, 6 or 5.",
        )
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
    if options.canary is not None and options.require:
        raise UsageError(
            "--require and --canary exclude each other",
            hint="A canary is held against its baseline: watch it alone, with --url.",
        )
    times = Times(for_s, every_s, window_s)
    least_s = (times.run_in_s + window_s) / (KEPT_STEPS - 1)
    if every_s < least_s:
        raise UsageError(
            f"--every {options.every}: more readings than a watch remembers of --window "
            f"{options.window}",
            hint=f"Give --every {math.ceil(least_s)}s, or a shorter --window.",
        )
    return times


def promised_of(profile: ServingProfile, options: WatchOptions) -> Promised:
    """Return what is watched. Raises ProfileError for a profile without a twin."""
    cure = "Sweep again; only a twin can say what today's traffic should give."
    twin = twin_of(profile, options.profile, cure=cure)
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
        speed_sd=speed_sd_of(twin),
        tolerance=options.tolerance,
        requirements=_requirements(options, profile),
    )


def _requirements(options: WatchOptions, profile: ServingProfile) -> tuple[Requirement, ...]:
    """Return what is required here, or else what was required of the profile. Of a canary nothing
    is: it is held against its baseline."""
    found = required_of(profile, options.require, headroom=math.inf)
    return () if options.canary is not None else found


@dataclass(frozen=True, slots=True)
class Beforehand:
    """Facts to know before a watch begins."""

    warnings: list[str]
    untold: list[str]
    """The profile's arguments that the server does not tell."""

    skipped: list[str]
    """What is required and cannot be watched, with the reason."""


def beforehand(
    profile: ServingProfile, servers: Sequence[ScrapedServer], options: WatchOptions
) -> Beforehand:
    """Return what the servers say of themselves. Raises InputError where one serves another model.

    With a canary the arguments are the canary's, which should run the profile.
    """
    warnings, untold = list[str](), list[str]()
    if (said := profile.provenance.of_ranks) is not None:
        warnings.append(f"{said}: watch one rank's own address, a server's sum is another load")
    verdict = profile.decision.verdict
    if verdict in {"overloaded", "inconclusive"}:
        warnings.append(f"the profile's verdict is {verdict}: what it promises is little")
    for server in servers:
        here = _asked(server)
        if here is None:
            continue
        if (doubt := check_model(profile, server, options, here)) is not None:
            warnings.append(doubt)
        if server is servers[-1]:
            warnings += _differences(profile, here, server.url)
            untold = difference.untold(profile, here.arguments, served=here.served)
    skipped = [
        f"not watched: {one}: {why}"
        for one in _requirements(options, profile)
        if (why := why_not(one)) is not None
    ]
    return Beforehand(warnings, untold, skipped)


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


def _differences(profile: ServingProfile, here: LiveServer, url: str) -> list[str]:
    found = difference.of_server(profile, here.arguments, here.version, source=url)
    shown = [
        f"{one.name} {one.other} and not {one.profile}" if one.section == "engine" else one.evidence
        for one in found
    ]
    return [f"{url} runs {', '.join(shown)}: tuner diff says more"] if shown else []
