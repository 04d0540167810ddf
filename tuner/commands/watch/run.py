"""What ``tuner watch`` does: watch, end, and roll back where asked to."""

from contextlib import ExitStack, closing

from tuner.commands.watch.session import Session, side_of
from tuner.commands.watch.setup import (
    Times,
    WatchOptions,
    beforehand,
    check_model,
    promised_of,
    times_of,
)
from tuner.commands.watch.view import Progress, Result, json_object, render
from tuner.errors import (
    EngineError,
    GateError,
    Interrupted,
    TargetError,
    TunerError,
    UndecidedError,
)
from tuner.live.exporter import WatchExporter
from tuner.live.watch.canary import CanaryGate
from tuner.live.watch.journal import WindowJournal
from tuner.live.watch.reasons import server_is_why
from tuner.live.watch.scraper import Clock, MachineClock, ScrapedServer, moments
from tuner.profile.profile import load as load_profile
from tuner.rollout import backup

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
    with ExitStack() as stack:
        session = Session(
            sides=[side_of(server, promised, times, options.seed) for server in servers],
            gate=None if options.canary is None else CanaryGate(promised),
            progress=Progress(times.for_s),
            journal=_journal(options, stack),
            exporter=_exporter(options, stack),
            ends_early=options.rollback is not None,
            check_again=lambda server: check_model(profile, server, options),
            warnings=known.warnings,
            untold=known.untold,
        )
        stack.enter_context(session.progress)
        if options.rollback is not None:
            session.progress.say(f"{options.rollback} can be restored, and will be where it is due")
        try:
            session.begin()
            _go(session, times, clock or MachineClock())
        except KeyboardInterrupt:
            stopped = Interrupted(
                f"interrupted; so far: {session.verdict}",
                hint="Run the command again; windows that --run-dir has written stay.",
            )
        except TunerError as problem:
            stopped = problem
    _end(session, options, stopped, profile.digest)


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


def _go(session: Session, times: Times, clock: Clock) -> None:
    servers = [side.server for side in session.sides]
    for moment in moments(servers, every_s=times.every_s, for_s=times.for_s, clock=clock):
        if session.take(moment):
            break
    if session.gate is None and session.sides[0].watch.windows:
        session.sides[0].watch.ask()


def _end(session: Session, options: WatchOptions, stopped: TunerError | None, digest: str) -> None:
    """Print what is known, roll back where that is due, and raise what the exit code says."""
    rolled_back = None if stopped is not None else _rolled_back(session, options, digest)
    result = Result(
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
        warnings=session.warnings,
    )
    if options.json:
        json_object(result)
    else:
        render(result)
    if stopped is not None:
        raise stopped
    if session.gone:
        raise EngineError(
            f"{options.url} {session.gone}",
            hint="What was known until then stands above. Look at the server's log.",
        )
    _raise_for(session, options, rolled_back)


def _raise_for(session: Session, options: WatchOptions, rolled_back: str | None) -> None:
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


def _cure(session: Session, options: WatchOptions, rolled_back: str | None) -> str:
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


def _rolled_back(session: Session, options: WatchOptions, digest: str) -> str | None:
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
