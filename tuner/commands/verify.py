"""``tuner verify``: replay a trace on a fresh engine or a running server, and gate on a promise."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tuner.commands.options import SweepOptions, VerifyOptions
from tuner.commands.shared.machine import check_machine, machine_of
from tuner.commands.shared.next_step import after, again
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.results import finish
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import one_engines, required_of, served_in
from tuner.commands.shared.trust import check_confirmed
from tuner.engines import provenance
from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.paged import WARM_UPS
from tuner.engines.seam import EngineFacts, Starter
from tuner.engines.server import RunningServer
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import GateError, UndecidedError, UsageError
from tuner.live import prometheus
from tuner.live import server as live_server
from tuner.live.server import LiveServer
from tuner.profile import served_models
from tuner.profile.evidence import StoredTwin, twin_of
from tuner.profile.profile import ServingProfile, keep
from tuner.profile.profile import load as load_profile
from tuner.replay.soundness import Read
from tuner.runs.bench import Build
from tuner.runs.verify import Verification, Verified, verify
from tuner.system import http
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.workload import keep_what_fits, parse_step_s
from tuner.views.live import Progress
from tuner.views.verify import broken_in_words, verify_page

KEY = "TUNER_API_KEY"
"""Variable with the key of a server."""
BLOCK_SIZE, ANY_LENGTH = 16, 2**31
"""vLLM's, where a server does not report them."""


def run(options: VerifyOptions) -> None:
    """Verify and print. Raises GateError when a promise is broken, and other TunerErrors."""
    if options.send_load is not None and options.url is None:
        raise UsageError("--send-load is for --url", hint="Add --url, or leave it out.")
    if options.url is not None and options.world is not None:
        raise UsageError("--url and --world cannot be combined", hint="Leave out --world.")
    profile = load_profile(options.profile)
    trace, origin, progress = load(options.trace), profile.provenance, Progress()
    replicas = (options.replicas or origin.replicas) * origin.ranks
    served = served_in(trace, options.trace)
    requests = one_engines(served, replicas=replicas, router=origin.router)
    twin = _twin(options, profile)
    question = Verification(
        profile=profile,
        twin=twin,
        trace_block_size=trace.header.block_size,
        step_s=parse_step_s(options.step),
        tolerance=options.tolerance,
        requirements=required_of(profile, options.require, headroom=math.inf),
    )
    if options.url is None:
        starter, read = _fresh(options, profile)
    else:
        starter, question = _running(options, options.url, profile, requests, question, progress)
        read = None
    plan = {
        "profile_digest": profile.digest,
        "trace_digest": trace.digest,
        **in_plan(options, "step", "replicas", "require", "tolerance", "url"),
    }
    book = open_run("verify", options, plan)
    with kept(book):
        with progress:
            verified = verify(requests, starter, question, book, progress, read)
        keep(profile, book.run_dir)
        result = {
            "profile": str(options.profile),
            "trace": str(options.trace),
            "kept": all(gate.kept for gate in verified.gates),
            "gates": verified.gates,
            "p95_ms": verified.p95_ms,
            "run_dir": str(book.run_dir),
        }
        page = verify_page(
            verified,
            profile,
            tolerance=options.tolerance,
            run_dir=str(book.run_dir),
            next_=_next(options, profile, verified),
        )
        finish(options, result, page, book.run_dir)
    check_gates(verified)


def check_gates(verified: Verified) -> None:
    """Raise GateError where a gate is broken, UndecidedError where others took the cores."""
    broken = "; ".join(broken_in_words(gate) for gate in verified.gates if not gate.kept)
    if broken and verified.taken is not None:
        raise UndecidedError(
            f"{verified.taken} while it was replayed: {broken}",
            hint="Verify again when nothing else runs on this machine.",
        )
    if broken:
        cure = "Do not roll it out: sweep again on this machine with this trace."
        raise GateError(broken, hint=cure)


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


def _fresh(options: VerifyOptions, profile: ServingProfile) -> tuple[Starter, Read | None]:
    """Return what starts engines with the profile's arguments, and what reads the device."""
    machine = machine_of(options, profile.model, profile.sampling)
    if options.world is None:
        check_confirmed(profile, options.overrides, source=options.profile)
    if not options.force:
        check_machine(profile, machine)
    starter = machine.starter(profile.engine)
    if isinstance(starter, VllmStarter) and is_behind_server(options, profile):
        starter = replace(starter, kind="serve")
    return starter, machine.read


def _running(  # noqa: PLR0913, PLR0917 - what is verified, on what
    options: VerifyOptions,
    url: str,
    profile: ServingProfile,
    requests: Sequence[TraceRequest],
    question: Verification,
    progress: Progress,
) -> tuple[Starter, Verification]:
    """Return the server at the address, and the question as it can answer it. Sends no request."""
    server, warnings = _starter_at(url, profile, is_forced=options.force)
    for warning in warnings:
        progress.warn(warning)
    kept, _ = keep_what_fits(requests, max_model_len=server.facts.max_model_len)
    planned = len(question.trial(kept, Build("verify", question.cap, server)).requests)
    most = _allowed(server.url, planned, options.send_load)
    can_repeat = most is None or most >= 2 * planned + WARM_UPS
    question = replace(question, url=server.url, repeats=can_repeat)
    return server, question


def _next(options: VerifyOptions, profile: ServingProfile, verified: Verified) -> str:
    """Return what to run next: the rollout, the same again, or a new sweep."""
    if all(gate.kept for gate in verified.gates) or options.world is not None:
        return after(profile, options.profile)
    if verified.taken is not None:
        return again("verify", options, json=False, run_dir=None)
    slo = profile.decision.slo.slo
    anew = SweepOptions(
        trace=options.trace,
        model=profile.model,
        slo=None if slo.derived else str(slo),
        output=options.profile,
        overrides=options.overrides,
        replicas=options.replicas or profile.provenance.replicas,
        router=profile.provenance.router or "least",
    )
    return again("sweep", anew)


# A running server


def _starter_at(
    url: str, profile: ServingProfile, *, is_forced: bool
) -> tuple[RunningServer, list[str]]:
    """Return what asks the server at the address, and warnings about it; it was sent no request
    yet.

    Raises UsageError, InputError, and GateError for another model or vLLM than the profile's, or
    while the server serves others.
    """
    base, key = live_server.base_of(url), os.environ.get(KEY)
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY} holds no key", hint="Set it to the server's key, or unset it.")
    here = live_server.ask(base)
    if busy := int(sum(map(here.metrics.get, (prometheus.RUNNING, prometheus.WAITING)))):
        raise GateError(
            f"{base} is serving {busy} requests: what is measured beside them is theirs too",
            hint="Wait until it is idle.",
        )
    if not is_forced:
        _check_same(profile, here)
    merged = {**profile.engine, **here.arguments}
    lengths = [each.max_model_len for each in here.served if each.max_model_len is not None]
    facts = EngineFacts(
        engine="server",
        arguments={k: v for k, v in merged.items() if isinstance(v, str | int | float | bool)},
        max_model_len=min(lengths, default=_count(merged.get("max_model_len"), ANY_LENGTH)),
        vocab_size=2**15,
        block_size=_count(merged.get("block_size"), BLOCK_SIZE),
        kv_blocks=_count(here.arguments.get("num_gpu_blocks"), 0),
        start_s=0.0,
        versions={} if here.version is None else {"vllm": here.version},
        device={},
    )
    served = here.served
    same = [each for each in served if served_models.model_mismatch(profile, [each]) is None]
    starter = RunningServer(
        url=base,
        model=(same or served)[0].name if served else profile.model,
        facts=facts,
        sampling=profile.sampling,
        key=key,
        served=partial(_served, base),
    )
    return starter, list(_warnings(profile, here))


def _allowed(url: str, requests: int, send_load: int | None) -> int | None:
    """Return how many requests the server may get; None: as many as a replay takes.

    Raises UsageError for a server elsewhere that is to get more than ``--send-load`` allows.
    """
    needed = requests + WARM_UPS
    if send_load is None and http.is_loopback(url):
        return None
    if (send_load or 0) < needed:
        raise UsageError(
            f"{url} would get {needed:,} requests of this trace's load",
            hint=f"Is nobody served there who would mind? Then add --send-load {needed}.",
        )
    return send_load


def _served(base: str) -> float:
    return live_server.read(base).get(prometheus.FINISHED)


def _check_same(profile: ServingProfile, here: LiveServer) -> None:
    if (mismatch := served_models.model_mismatch(profile, here.served)) is not None:
        raise GateError(
            f"the server serves {mismatch.words}",
            hint="Give that model's server, or verify it all the same: --force.",
        )
    was, is_ = provenance.vllm_in(profile.provenance.versions), here.version
    if was is not None and is_ is not None and not provenance.is_same(was, is_):
        raise GateError(
            f"the profile was measured with vLLM {was}, the server is {is_}",
            hint="Sweep with the server's vLLM, or verify it all the same: --force.",
        )


def _warnings(profile: ServingProfile, here: LiveServer) -> Iterator[str]:
    """Yield in what the server differs from what was measured, and what is not known of it."""
    for name in sorted(profile.engine.keys() & here.arguments.keys()):
        was, is_ = profile.engine[name], here.arguments[name]
        if was is not None and was != "auto" and is_ is not None and was != is_:
            yield f"the profile has {name} {was}, the server {is_}"
    if here.version is None:
        yield "the server reports no version: whether it is the vLLM of the profile is not known"
    variables = profile.provenance.environment or {}
    given = [f"{name}={value}" for name, value in variables.items() if name not in WHICH_DEVICE]
    if given:
        yield (
            f"the profile was measured with {', '.join(given)} in the environment: whether the "
            "server has that is not known"
        )


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
