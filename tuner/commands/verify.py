"""``tuner verify``: replay a trace on a fresh engine or a running server, and gate on a promise."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from tuner.commands import running
from tuner.commands.options import SweepOptions, VerifyOptions
from tuner.commands.shared.machine import check_machine, machine_of
from tuner.commands.shared.next_step import after, again, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.promise import required_of
from tuner.commands.shared.results import finish
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import one_engines, served_in
from tuner.commands.shared.trust import check_asked
from tuner.engines.paged import WARM_UPS
from tuner.engines.seam import Starter
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import GateError, Interrupted, TargetError, UndecidedError, UsageError
from tuner.profile.evidence import StoredTwin, twin_of
from tuner.profile.profile import ServingProfile, keep
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import promised
from tuner.replay.readings import Read
from tuner.runs import journal
from tuner.runs.journal import Journal
from tuner.runs.verify import Verification, Verified, verify, windows_of
from tuner.system import files
from tuner.system.printable import printable
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.workload import keep_what_fits, parse_step_s
from tuner.views.live import Progress
from tuner.views.verify import broken_in_words, verify_json, verify_page

HEAD_BYTES = 1024


def run(options: VerifyOptions) -> None:
    """Verify and print. Raises GateError when a promise is broken, and other TunerErrors."""
    if options.send_load is not None and options.url is None:
        raise UsageError("--send-load is for --url", hint="Add --url, or leave it out.")
    if options.url is not None and options.world is not None:
        raise UsageError("--url and --world exclude each other", hint="Leave out --world.")
    if options.junit is not None:
        _prepare_junit(options.junit)
    profile = load_profile(options.profile)
    trace, origin, progress = load(options.trace), profile.provenance, Progress()
    replicas = (options.replicas or origin.replicas) * origin.ranks
    served = served_in(trace, options.trace)
    requests = one_engines(served, replicas=replicas, router=origin.router)
    server = None if options.url is None else running.find(options.url, profile, options)
    twin = _twin(options, profile) if server is None or server.is_vllm else None
    question = Verification(
        twin=twin,
        slo=profile.decision.slo.slo,
        max_num_seqs=profile.decision.max_num_seqs,
        tpot_s=_tpot_s(profile),
        hit_share=0.0 if twin is None else twin.hit_share,
        trace_block_size=trace.header.block_size,
        window="all",
        step_s=parse_step_s(options.step),
        tolerance=options.tolerance,
        requirements=required_of(profile, options.require, headroom=math.inf),
        environment=origin.environment,
    )
    if server is None:
        starter, read = _fresh(options, profile)
    else:
        starter, question = _running(options, server, profile, requests, question, progress)
        read = None
    with _book(options, profile, trace.digest) as book:
        with progress:
            verified = verify(requests, starter, question, book, progress, read)
        result = verify_json(verified, profile=str(options.profile), trace=str(options.trace))
        page = verify_page(
            verified,
            profile,
            tolerance=options.tolerance,
            of_server=server is not None,
            run_dir=str(options.run_dir or ""),
            next_=_next(options, profile, verified),
        )
        if options.run_dir is not None:
            keep(profile, book.run_dir)
        if options.junit is not None:
            _write_junit(options.junit, str(options.profile), verified)
        finish(options, result, page, options.run_dir)
    check_gates(verified, of_server=server is not None)


def check_gates(verified: Verified, *, of_server: bool) -> None:
    """Raise GateError where a gate is broken, UndecidedError where others took the cores."""
    broken = [broken_in_words(gate) for gate in verified.gates if not gate.kept]
    if broken and verified.taken is not None:
        raise UndecidedError(
            f"{verified.taken} while it was replayed: {'; '.join(broken)}",
            hint="Verify again when nothing else runs on this machine.",
        )
    if broken:
        cure = "Do not roll it out: sweep again on this machine with this trace."
        if of_server and not any(gate.is_promise for gate in verified.gates):
            cure = "Ask less of it: --require."
        raise GateError("; ".join(broken), hint=cure)


def is_behind_server(options: VerifyOptions, profile: ServingProfile) -> bool:
    """Whether what is replayed comes through a server's front end: it is in the promise of what a
    server had confirmed."""
    is_started = options.world is None and profile.provenance.confirm == "server"
    return options.url is not None or is_started


def _twin(options: VerifyOptions, profile: ServingProfile) -> StoredTwin:
    """Return the profile's twin. Raises ProfileError, and GateError where nothing is promised."""
    front_end = profile.front_end if is_behind_server(options, profile) else None
    cure = "Sweep again; only a twin can predict this trace's windows."
    twin = twin_of(profile, options.profile, cure=cure, behind=front_end)
    if profile.decision.verdict in {"overloaded", "inconclusive"} and not options.force:
        raise GateError(
            f"{options.profile}: its verdict is {profile.decision.verdict}: it promises nothing "
            "that could be kept",
            hint="Sweep again with what its reason asks for, or verify it all the same: --force.",
        )
    return twin


def _tpot_s(profile: ServingProfile) -> float:
    """Return what a token takes by the profile's promise."""
    spread = promised(profile).tpot_ms
    return 0.0 if spread is None else 1e-3 * spread.p50


def _fresh(options: VerifyOptions, profile: ServingProfile) -> tuple[Starter, Read | None]:
    """Return what starts engines with the profile's arguments, and what reads the device."""
    machine = machine_of(options, profile.model, profile.sampling)
    if options.world is None:
        check_asked(profile, options.overrides, source=options.profile)
    if not options.force:
        check_machine(profile, machine)
    starter = machine.starter(profile.engine)
    if isinstance(starter, VllmStarter) and is_behind_server(options, profile):
        starter = ServerStarter.like(starter)
    return starter, machine.read


def _running(  # noqa: PLR0913, PLR0917 - what is verified, on what
    options: VerifyOptions,
    server: running.FoundServer,
    profile: ServingProfile,
    requests: Sequence[TraceRequest],
    question: Verification,
    progress: Progress,
) -> tuple[Starter, Verification]:
    """Return the server at the address, and the question as it can answer it. Sends no request."""
    for warning in server.warnings:
        progress.warn(warning)
    kept, _ = keep_what_fits(requests, max_model_len=server.facts.max_model_len)
    planned = sum(len(sent) for _, sent in windows_of(kept, question))
    most = server.allowed(planned, options.send_load)
    can_repeat = most is None or most >= 2 * planned + WARM_UPS
    starter = server.starter(planned=planned, most=most, sampling=profile.sampling)
    return starter, replace(question, url=server.url, repeats=can_repeat)


@contextmanager
def _book(options: VerifyOptions, profile: ServingProfile, trace_digest: str) -> Iterator[Journal]:
    """Begin the folder of this verification, before an engine is started; without ``--run-dir`` it
    is gone in the end. Raises RunError."""
    plan = {
        "profile_digest": profile.digest,
        "trace_digest": trace_digest,
        **in_plan(options, "step", "replicas", "require", "tolerance", "url"),
    }
    if options.run_dir is not None:
        book = open_run("verify", options, plan)
        with kept(book):
            yield book
        return
    with (
        TemporaryDirectory(prefix="tuner-verify-") as folder,
        closing(journal.create(Path(folder), plan)) as book,
    ):
        try:
            yield book
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise Interrupted("nothing was verified", hint="Run the command again.") from None


def _next(options: VerifyOptions, profile: ServingProfile, verified: Verified) -> str:
    """Return what to run next. What a server does of which nothing was promised is no reason to
    roll the profile out, and none to tune again."""
    is_broken = any(not gate.kept for gate in verified.gates)
    if options.url is not None and not any(gate.is_promise for gate in verified.gates):
        return command("show", options.profile)
    if not is_broken or options.world is not None:
        return after(profile, options.profile)
    if verified.taken is not None:
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


def _prepare_junit(path: Path) -> None:
    """Remove the file of an earlier run, which says nothing about this one. Raises TargetError for
    a file that is no JUnit file."""
    real = files.resolve(path)
    files.check_writable(real)
    if real.exists():
        with real.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head.strip() and b"<testsuite" not in head:
            raise TargetError(
                f"{path}: is there already and is no JUnit file", hint="Choose another --junit."
            )
        real.unlink()


def _write_junit(path: Path, profile: str, verified: Verified) -> None:
    """Write a case for each gate. Raises TargetError."""
    failures = sum(not gate.kept for gate in verified.gates)
    counts = {"tests": len(verified.gates), "failures": failures, "errors": 0}
    words = {name: str(count) for name, count in counts.items()}
    suite = ET.Element("testsuite", {"name": "tuner verify", **words})
    for gate in verified.gates:
        case = ET.SubElement(suite, "testcase", classname=printable(profile), name=gate.name)
        if not gate.kept:
            ET.SubElement(case, "failure", message=printable(broken_in_words(gate)))
    content = bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"
    files.write_atomically(files.resolve(path), content)
