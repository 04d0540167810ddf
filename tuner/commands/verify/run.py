"""The work of ``tuner verify``."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tuner.commands.options import SweepOptions, VerifyOptions
from tuner.commands.shared.engine import world_of
from tuner.commands.shared.machine import Here, ThisMachine, check_machine
from tuner.commands.shared.next_step import after, again, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.promise import required_of, twin_of
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import one_engines, served_in
from tuner.commands.shared.trust import check_asked
from tuner.commands.verify import junit, running
from tuner.engines.devices import DeviceMeter
from tuner.engines.seam import Starter
from tuner.engines.server.running import WARM_UPS, RunningStarter
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import GateError, Interrupted, UndecidedError
from tuner.profile.profile import keep
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin
from tuner.profile.summary import promised
from tuner.replay.readings import Read
from tuner.runs import journal
from tuner.runs.journal import Journal
from tuner.runs.verify import Verification, Verified, verify, windows_of
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.workload import keep_what_fits, parse_step_s
from tuner.views.live import Progress
from tuner.views.page import Page
from tuner.views.text import print_json, print_page
from tuner.views.verify import broken_in_words, verify_json, verify_page


def run(options: VerifyOptions) -> None:
    """Verify and print. Raises GateError when a promise is broken, and other TunerErrors."""
    running.check_options(options)
    if options.junit is not None:
        junit.prepare(options.junit)
    profile = load_profile(options.profile)
    asked = _asked(options, profile)
    with _book(options, profile) as book:
        found = _verified(asked, book)
        if options.run_dir is not None:
            keep(profile, book.run_dir)
            keep_result(book.run_dir, _result(options, found), _page(options, profile, found))
    if options.junit is not None:
        junit.write(options.junit, str(options.profile), found.gates, broken_in_words)
    _report(options, profile, found)


@contextmanager
def _book(options: VerifyOptions, profile: ServingProfile) -> Iterator[Journal]:
    """Begin the folder of this verification, before an engine is started; one that does not stay
    where none is named. Raises RunError."""
    plan = {
        "profile_digest": profile.digest,
        "trace": str(options.trace),
        **in_plan(options, "step", "replicas", "require", "tolerance"),
    }
    if options.run_dir is None:
        with (
            TemporaryDirectory(prefix="tuner-verify-") as folder,
            closing(journal.create(Path(folder), plan)) as book,
        ):
            try:
                yield book
            except (KeyboardInterrupt, asyncio.CancelledError):
                hint = "Run the command again."
                raise Interrupted("nothing was verified", hint=hint) from None
        return
    book = open_run("verify", options, plan)
    with kept(book):
        yield book


@dataclass(frozen=True, slots=True)
class _Asked:
    """A verification as it is asked for: the requests, the question, and where it is replayed."""

    requests: Sequence[TraceRequest]
    question: Verification
    place: "_Place"
    progress: Progress


def _twin(options: VerifyOptions, profile: ServingProfile) -> StoredTwin:
    """Return the profile's twin. Raises ProfileError, and GateError where nothing is promised."""
    in_between = profile.front_end if _is_served(options, profile) else None
    cure = "Sweep again; only a twin can say what this trace's windows should give."
    twin = twin_of(profile, options.profile, cure=cure, front_end=in_between)
    if profile.decision.verdict in {"overloaded", "inconclusive"} and not options.force:
        raise GateError(
            f"{options.profile}: its verdict is {profile.decision.verdict}: it promises nothing "
            "that could be kept",
            hint="Sweep again with what its reason asks for, or verify it all the same: --force.",
        )
    return twin


def _is_served(options: VerifyOptions, profile: ServingProfile) -> bool:
    """Whether what is replayed comes through a server's front end: it is in the promise of what a
    server had confirmed."""
    is_started = options.world is None and profile.provenance.confirm == "server"
    return options.url is not None or is_started


def _asked(options: VerifyOptions, profile: ServingProfile) -> _Asked:
    found = None if options.url is None else running.find(options, options.url, profile)
    twin = _twin(options, profile) if found is None or found.is_vllm else None
    step_s = parse_step_s(options.step)
    trace = load(options.trace)
    served = served_in(trace, options.trace)
    origin = profile.provenance
    replicas = (options.replicas or origin.replicas) * origin.ranks
    requests = one_engines(served, replicas=replicas, router=origin.router)
    progress = Progress()
    question = Verification(
        twin=twin,
        slo=profile.decision.slo.slo,
        max_num_seqs=profile.decision.max_num_seqs,
        tpot_s=_tpot_s(profile),
        hit_share=0.0 if profile.twin is None else profile.twin.hit_share,
        trace_block_size=trace.header.block_size,
        window="all",
        step_s=step_s,
        tolerance=options.tolerance,
        requirements=required_of(profile, options.require, headroom=math.inf),
        environment=profile.provenance.environment,
    )
    if found is None:
        place = _place(options, profile)
        if not options.force and place.here is not None:
            check_machine(profile, place.here)
    else:
        place, question = _running(options, found, profile, requests, question, progress.warn)
    return _Asked(requests, question, place, progress)


def _tpot_s(profile: ServingProfile) -> float:
    """Return what a token takes by the profile's promise."""
    spread = promised(profile).tpot_ms
    return 0.0 if spread is None else 1e-3 * spread.p50


def _verified(asked: _Asked, book: Journal) -> Verified:
    progress, place = asked.progress, asked.place
    read = progress.reading(place.read)
    with progress:
        return verify(asked.requests, place.starter, asked.question, book, progress, read)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of the engine: what starts it, the loop, and what reads the device."""

    here: Here | None
    """None where nothing is started."""

    starter: Starter
    read: Read | None


def _place(options: VerifyOptions, profile: ServingProfile) -> _Place:
    """Return where engines with the profile's arguments run."""
    if (world := world_of(options)) is not None:
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        simulated = SimStarter(read_world(world), model=profile.model)
        return _Place(simulated, simulated, None)
    check_asked(profile, options, source=options.profile)
    arguments = {key: value for key, value in profile.engine.items() if key != "max_num_seqs"}
    starter = VllmStarter(cast("Any", arguments), sampling=profile.sampling)
    if _is_served(options, profile):
        starter = ServerStarter.like(starter)
    return _Place(ThisMachine(), starter, DeviceMeter().read)


def _running(  # noqa: PLR0913, PLR0917 - what is asked, of what, and who is told
    options: VerifyOptions,
    found: running.FoundServer,
    profile: ServingProfile,
    requests: Sequence[TraceRequest],
    question: Verification,
    tell: Callable[[str], None],
) -> tuple[_Place, Verification]:
    """Return the server at the address, and what is asked of it. Sends no request yet."""
    for warning in found.warnings:
        tell(f"Warning: {warning}")
    if not found.is_vllm:
        tell(
            f"Warning: {found.url} is no vLLM that tells its metrics: only what its clients see is "
            "held against the SLO"
        )
    kept, _ = keep_what_fits(requests, max_model_len=found.facts.max_model_len)
    planned = sum(len(sent) for _, sent in windows_of(kept, question))
    most = running.allowed(options, found, planned)
    sampling = profile.sampling
    server = running.asked(found, planned=planned, most=most, sampling=sampling)
    question = replace(
        question,
        url=found.url,
        repeats=most is None or most >= 2 * planned + WARM_UPS,
    )
    return _Place(None, RunningStarter(server), None), question


def _result(options: VerifyOptions, found: Verified) -> dict[str, Any]:
    return verify_json(found, profile=str(options.profile), trace=str(options.trace))


def _page(options: VerifyOptions, profile: ServingProfile, found: Verified) -> Page:
    return verify_page(
        found,
        profile,
        tolerance=options.tolerance,
        of_server=options.url is not None,
        run_dir=str(options.run_dir or ""),
        next_=_next(options, profile, found),
    )


def _next(options: VerifyOptions, profile: ServingProfile, found: Verified) -> str:
    """Return what to run next. What a server does of which nothing was promised is no reason to
    roll the profile out, and none to tune again."""
    broken = any(not gate.kept for gate in found.gates)
    if options.url is not None and not any(gate.is_promise for gate in found.gates):
        return command("show", options.profile)
    if not broken or options.world is not None:
        return after(profile, options.profile)
    if found.taken is not None:
        return again("verify", options, json=False, run_dir=None)
    slo = profile.decision.slo.slo
    anew = SweepOptions(
        trace=options.trace,
        model=profile.model,
        slo=None if slo.derived else slo.typed(),
        output=options.profile,
        overrides=options.overrides,
        replicas=options.replicas or profile.provenance.replicas,
        router=profile.provenance.router or "least",
    )
    return again("sweep", anew)


def _report(options: VerifyOptions, profile: ServingProfile, found: Verified) -> None:
    broken = [gate for gate in found.gates if not gate.kept]
    if options.json:
        print_json(_result(options, found))
    else:
        print_page(_page(options, profile, found))
    if broken and found.taken is not None:
        raise UndecidedError(
            f"{found.taken} while it was replayed: {'; '.join(map(broken_in_words, broken))}",
            hint="Verify again when nothing else runs on this machine.",
        )
    if broken:
        raise GateError(
            "; ".join(map(broken_in_words, broken)),
            hint=_cure(options, found),
        )


def _cure(options: VerifyOptions, found: Verified) -> str:
    if options.url is not None and not any(gate.is_promise for gate in found.gates):
        return "Ask less of it: --require."
    return "Do not roll it out: sweep again on this machine with this trace."
