"""``tuner verify``: replay a trace on a fresh engine or a running server, and gate on a promise."""

import math
import os
from dataclasses import replace

from tuner.commands.options import SweepOptions, VerifyOptions
from tuner.commands.shared.machine import machine_for
from tuner.commands.shared.next_step import after, again, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.run_folder import finish, kept, open_run
from tuner.commands.shared.traffic import one_engines, required_of, served_in
from tuner.engines import provenance
from tuner.engines.seam import EngineFacts, Starter
from tuner.engines.server import RunningServer
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import GateError, UndecidedError, UsageError
from tuner.live import prometheus
from tuner.live import server as live_server
from tuner.profile.evidence import twin_of
from tuner.profile.profile import ServingProfile, keep
from tuner.profile.profile import load as load_profile
from tuner.profile.served_models import model_mismatch
from tuner.profile.summary import engine_time, is_simulated, percent, with_share
from tuner.runs.bench import Bench
from tuner.runs.verify import Gate, Verification, Verified, verify
from tuner.system import http
from tuner.trace.trace import load
from tuner.traffic.workload import parse_step_s
from tuner.views.live import Progress
from tuner.views.page import Cell, Column, Page, Section, Table, text

KEY = "TUNER_API_KEY"
"""Variable with the key of a server."""
BLOCK_SIZE, ANY_LENGTH, VOCABULARY = 16, 2**31, 2**15
"""Where a server does not report them."""


def run(options: VerifyOptions) -> None:
    """Verify and print. Raises GateError when a promise is broken, and other TunerErrors."""
    if options.url is not None and options.world is not None:
        raise UsageError("--url and --world cannot be combined", hint="Leave out --world.")
    profile = load_profile(options.profile)
    trace, origin = load(options.trace), profile.provenance
    replicas = (options.replicas or origin.replicas) * origin.ranks
    served = served_in(trace, options.trace)
    requests = one_engines(served, replicas=replicas, router=origin.router)
    front_end = profile.front_end if is_behind_server(options, profile) else None
    cure = "Sweep again; only a twin can predict this trace's windows."
    twin = twin_of(profile, options.profile, cure=cure, behind=front_end)
    if profile.decision.verdict in {"overloaded", "inconclusive"} and not options.force:
        raise GateError(
            f"{options.profile}: its verdict is {profile.decision.verdict}: it promises nothing "
            "that could be kept",
            hint="Sweep again with what its reason asks for, or verify it all the same: --force.",
        )
    question = Verification(
        profile=profile,
        twin=twin,
        trace_block_size=trace.header.block_size,
        step_s=parse_step_s(options.step),
        tolerance=options.tolerance,
        requirements=required_of(profile, options.require, headroom=math.inf),
    )
    starter: Starter
    if options.url is None:
        machine = machine_for(options, profile)
        starter, read = machine.starter(profile.engine), machine.read
        if isinstance(starter, VllmStarter) and is_behind_server(options, profile):
            starter = replace(starter, kind="serve")
    else:
        starter, read = _running(options, options.url, profile), None
        question = replace(question, url=starter.url)
    plan = {
        "profile_digest": profile.digest,
        "trace_digest": trace.digest,
        **in_plan(options, "step", "replicas", "require", "tolerance", "url"),
    }
    book = open_run("verify", options, plan)
    run_dir = str(book.run_dir)
    with kept(book):
        with Progress() as progress:
            bench = Bench(book, progress, read, block_size=trace.header.block_size)
            verified = verify(requests, starter, question, bench)
        keep(profile, book.run_dir)
        result = {
            "kept": all(gate.kept for gate in verified.gates),
            "gates": verified.gates,
            "run_dir": run_dir,
        }
        finish(options, result, _page(options, profile, verified, run_dir), book.run_dir)
    check_gates(verified)


def check_gates(verified: Verified) -> None:
    """Raise GateError where a gate is broken, UndecidedError where others took the cores."""
    broken = "; ".join(_in_words(gate) for gate in verified.gates if not gate.kept)
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


def _next(options: VerifyOptions, profile: ServingProfile, verified: Verified) -> str:
    """Return what to run next: the rollout, the same again, or a new sweep."""
    if all(gate.kept for gate in verified.gates) or options.world is not None:
        return after(profile, options.profile)
    if verified.taken is not None:
        return again("verify", options, json=False, run_dir=None)
    if options.url is not None:  # in what it differs from what was measured
        return command("show", options.profile, options.url)
    slo = profile.decision.slo.slo
    anew = SweepOptions(
        trace=options.trace,
        model=profile.model,
        slo=None if slo.derived else str(slo),
        output=options.profile,
        replicas=options.replicas or profile.provenance.replicas,
        router=profile.provenance.router or "least",
    )
    return again("sweep", anew)


def _page(
    options: VerifyOptions, profile: ServingProfile, verified: Verified, run_dir: str
) -> Page:
    """Return whether the promise was kept, and by how much."""
    broken, count = sum(not gate.kept for gate in verified.gates), len(verified.gates)
    title = f"max_num_seqs {profile.decision.max_num_seqs}"
    aside = f"{count - broken} of {count} gates kept"
    if broken and verified.taken is not None:
        title, aside = f"nothing can be concluded about {title}", verified.taken
    else:
        title += f" {'breaks' if broken else 'keeps'} its promise"
        shares = (gate.measured for gate in verified.gates if gate.name == "attainment")
        title = with_share(next(shares, 1.0), title)
    is_sim = is_simulated(profile)
    numbers = (Column(name, name, "number") for name in ("promised", "measured", "limit"))
    words = (Column("result", "result"), Column("limit_is", "limit is"))
    columns = [Column("gate", "gate"), *numbers, *words]
    rows: list[list[Cell]] = [
        [
            _named(gate),
            _shown(gate, gate.promised) if gate.is_promise else None,
            _shown(gate, gate.measured),
            _shown(gate, gate.limit),
            "kept" if gate.kept else "BROKEN",
            gate.limit_is,
        ]
        for gate in verified.gates
    ]
    return Page(
        subject=f"Verification {run_dir}",
        title=title,
        aside="simulated, " * is_sim + aside,
        facts=[("took", engine_time(verified.engine_s, simulated=is_sim))],
        sections=[Section("Gates", tables=[Table(columns, rows)])],
        run_dir=run_dir,
        next=_next(options, profile, verified),
    )


def _in_words(gate: Gate) -> str:
    """Return a gate that was not kept, in words."""
    is_share = gate.name == "attainment"
    words = f"{'share that ' * is_share}{_named(gate)} was {_shown(gate, gate.measured)}"
    if not gate.is_promise:
        return f"{words}, {gate.limit_is}"
    limit = f"{'at least' if is_share else 'at most'} {_shown(gate, gate.limit)}"
    return f"{words}, promised {_shown(gate, gate.promised)} ({limit})"


def _named(gate: Gate) -> str:
    return "met the SLO" if gate.name == "attainment" else gate.name.removesuffix("_ms")


def _shown(gate: Gate, value: float) -> str:
    if gate.name == "attainment" or gate.name.startswith("kv_cache_usage"):
        return percent(value)
    return text("time", value / 1e3) if gate.name.endswith("_ms") else f"{value:,.1f}"


# A running server


def _running(options: VerifyOptions, url: str, profile: ServingProfile) -> RunningServer:
    """Return what asks the server at the address; it was sent no request yet.

    Raises UsageError, InputError, and GateError for another model or vLLM than the profile's, or
    while the server serves others.
    """
    base, key = live_server.base_of(url), os.environ.get(KEY)
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY} holds no key", hint="Set it to the server's key, or unset it.")
    if not http.is_loopback(base) and not options.send_load:
        raise UsageError(
            f"{base} would get the load of {options.trace}",
            hint="Is nobody served there who would mind? Then add --send-load.",
        )
    here = live_server.ask(base)
    if busy := int(sum(map(here.metrics.get, (prometheus.RUNNING, prometheus.WAITING)))):
        raise GateError(
            f"{base} is serving {busy} requests: what is measured beside them is theirs too",
            hint="Wait until it is idle.",
        )
    mismatch = model_mismatch(profile, here.served)
    words = None if mismatch is None else f"the server serves {mismatch.words}"
    was, is_ = provenance.vllm_in(profile.provenance.versions), here.version
    if was is not None and is_ is not None and not provenance.is_same(was, is_):
        words = words or f"the profile was measured with vLLM {was}, the server is {is_}"
    if words is not None and not options.force:
        raise GateError(words, hint="Give another server, or verify it all the same: --force.")
    longest = here.arguments.get("max_model_len", profile.engine.get("max_model_len"))
    same = [each for each in here.served if model_mismatch(profile, [each]) is None]
    return RunningServer(
        url=base,
        model=(same or here.served)[0].name if here.served else profile.model,
        facts=EngineFacts(
            engine="server",
            arguments=here.arguments,
            max_model_len=longest if isinstance(longest, int) else ANY_LENGTH,
            vocab_size=VOCABULARY,
            block_size=BLOCK_SIZE,
            kv_blocks=0,
            start_s=0.0,
            versions={} if is_ is None else {"vllm": is_},
            device={},
        ),
        sampling=profile.sampling,
        key=key,
        served=lambda: live_server.read(base).get(prometheus.FINISHED),
    )
