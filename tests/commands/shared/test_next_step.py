"""The verdict block of every command that decides, for every verdict and engine, and the command
that it ends with."""

import math
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pytest
from typer.main import get_command

from tests.live.watch.test_watch import CAP, CAPS, RATE, WORLD
from tests.support import golden
from tests.support.builders import facts, flat, measurement, replay_of, settings
from tests.support.few_draws import DRAWS, few_draws
from tests.support.in_process import tuner
from tests.support.live_sim import SimulatedServer, poisson, profile_of, simulated
from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile, resealed, step
from tests.support.served_metrics import FreeClock, page_of, serving
from tuner.commands.compare import run as compare
from tuner.commands.compare import view as compare_view
from tuner.commands.compare.options import CompareOptions
from tuner.commands.plan import run as plan
from tuner.commands.plan import view as plan_view
from tuner.commands.plan.options import PlanOptions
from tuner.commands.refine.options import RefineOptions
from tuner.commands.refine.view import RefinePrint, block_of_refinement
from tuner.commands.root import app
from tuner.commands.shared.machine import ThisMachine
from tuner.commands.shared.next_step import after, asked_for
from tuner.commands.show import run as show
from tuner.commands.show.options import ShowOptions
from tuner.commands.sweep import kinds, multi_trace
from tuner.commands.sweep.kinds import KindOutcome
from tuner.commands.sweep.multi_trace import MultiTraceSweep
from tuner.commands.sweep.one_trace import FinishedSweep
from tuner.commands.sweep.options import SweepOptions
from tuner.commands.sweep.view import next_command
from tuner.commands.verify import view as verify_view
from tuner.commands.verify.options import VerifyOptions
from tuner.commands.watch import view as watch_view
from tuner.commands.watch.options import WatchOptions
from tuner.commands.watch.run import run as watch
from tuner.errors import EngineError, UndecidedError
from tuner.live.watch.canary import CanaryGate
from tuner.live.watch.choice import CapCheck
from tuner.live.watch.drift import reference
from tuner.live.watch.promised import Promised
from tuner.live.watch.verdict import Watch
from tuner.profile import stored_twin
from tuner.profile.numbers import Baseline, CapNumbers, Predicted, SpreadSection
from tuner.profile.profile import save
from tuner.profile.schema import RequirementSection, ServingProfile
from tuner.profile.stored_twin import restored
from tuner.profile.summary import KINDS, block_of
from tuner.profile.verdict_block import MOST_LINES, WIDTH, VerdictBlock
from tuner.replay.records import DEVICE
from tuner.runs.compare.comparison import ComparisonRow, ComparisonTable, Numbers
from tuner.runs.compare.evidence import Tuned
from tuner.runs.compare.ratios import Ratio
from tuner.runs.outcome import Conclusion, CurvePoint, SweepOutcome
from tuner.runs.refine.acceptance import PairedRatio, PairedResult
from tuner.runs.refine.refinement import REFINED, Refinement
from tuner.runs.sweep.shared_cap import MultiTraceOutcome, Price, SharedCap, SharedCapKind
from tuner.runs.verify.gates import Gate
from tuner.runs.verify.verify import Verified
from tuner.traffic.slo import Slo
from tuner.twin.forecast import StepChange
from tuner.twin.verdict_text import Verdict, VerdictKind

Kind = Literal["vllm", "serve", "sim"]
ENGINES: tuple[Kind, ...] = ("vllm", "serve", "sim")
TRACE = Path("prod.jsonl")
PROFILE = Path("profile.yaml")
SERVED = Path("serve.yaml")
URL = "http://127.0.0.1:8000"
"""In what is printed; the server of a test has a port of its own."""

REASONS = {
    "knee": "32 gives -23.3% goodput, +122% p95 TPOT, +94% p99 E2EL; 8 gives -51.2% goodput",
    "plateau": "the traffic never needs more than 14 slots, so more change nothing",
    "kv_bound": "KV cache binds at 16, not the cap (at most 14 ran, 31 preempted); raise "
    "gpu_memory_utilization, lower max_model_len or kv_cache_dtype; 8 gives -51.2% goodput",
    "not_reached": "the curve still rises at the ceiling; sweep on with --ceiling 64",
    "overloaded": "no cap up to 32 meets the SLO for half of the requests; 1 replica takes about "
    "40% of this load, 3 take all",
    "inconclusive": "it serves your traffic as well as any in 14 of 40 draws",
}


@dataclass(frozen=True, slots=True)
class Said:
    """What one command says in the end, in one case."""

    case: str
    block: VerdictBlock
    profile: ServingProfile


@cache
def of_world() -> ServingProfile:
    """Return a profile with a twin of as many laws as a plan asks of most caps."""
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(stored_twin, "PRINTED", DRAWS)
        return profile_of(WORLD, poisson(RATE, 100.0, seed=1), 100.0, cap=CAP, caps=CAPS)


@cache
def with_twin(engine: Kind) -> ServingProfile:
    """Return a profile with a twin that can be asked, made by this engine on this machine."""
    one = of_world()
    here = ThisMachine()
    origin = {"engine": engine, "device": here.device, "versions": here.versions}
    return resealed(
        one,
        engine={**one.engine, "model": "tuner:tiny", "max_model_len": 1024},
        provenance=one.provenance.model_copy(update=origin),
    )


@contextmanager
def saved(one: ServingProfile) -> Iterator[None]:
    """Be in a folder in which this is the profile."""
    with TemporaryDirectory() as folder, chdir(folder):
        save(one, PROFILE)
        yield


def of_sweep(engine: Kind) -> Iterator[Said]:
    options = SweepOptions(traces=(TRACE,), seed=3, engine=engine)
    for verdict in KINDS:
        short = step(8, goodput_rps=3.9).model_copy(update={"attainment": 0.488})
        found = profile(
            verdict=verdict,
            engine_=engine,
            reason=REASONS[verdict],
            curve=(short, step(16), step(32)),
            engine={**ENGINE, "model": "tuner:tiny"},
        )
        if verdict == "inconclusive":
            unsure = found.decision.model_copy(update={"confidence": 0.35})
            found = resealed(found, decision=unsure)
        if verdict == "overloaded":
            late = SpreadSection(mean=9e3, p50=9e3, p90=2e4, p95=3e4, p99=4e4)
            lost = {"attainment": 0.31, "ttft_ms": late}
            curve = [one.model_copy(update=lost) for one in found.curve]
            promise = found.promise.model_copy(update=lost)
            validity = found.validity.model_copy(update={"validated_load": 1.0})
            twin = with_twin(engine).twin
            found = resealed(found, curve=curve, promise=promise, validity=validity, twin=twin)
        yield Said(verdict, block_of(found, next_=next_command(options, found, PROFILE)), found)
    yield from _of_a_broken_sweep(options, engine)
    yield from _against_now(options, engine)


def _against_now(options: SweepOptions, engine: Kind) -> Iterator[Said]:
    """Yield what a sweep says where something is set now, and of a headroom that was replayed."""
    found = profile(verdict="knee", engine_=engine, reason=REASONS["knee"])
    later = SpreadSection(mean=80.0, p50=76.0, p90=90.0, p95=97.0, p99=1120.5)
    given = CapNumbers.model_validate(step(16).model_dump(include=set(CapNumbers.model_fields)))
    worse = given.model_copy(update={"attainment": 0.824, "tpot_ms": later, "ttft_ms": later})
    now: dict[str, Baseline] = {
        "now 64": Baseline(max_num_seqs=64, source="base", never_filled=False, numbers=worse),
        "now 128, never filled": Baseline(
            max_num_seqs=128, source="default", never_filled=True, numbers=given
        ),
        "now 256, not measured": Baseline(
            max_num_seqs=256, source="default", never_filled=False, numbers=None
        ),
    }
    for case, one in now.items():
        beside = resealed(found, baseline=one)
        yield Said(case, block_of(beside, next_=next_command(options, beside, PROFILE)), beside)
    told = found.promise.model_dump(include=set(CapNumbers.model_fields)) | {"attainment": 0.996}
    promise = found.promise.model_copy(
        update={"predicted": [Predicted(load=one, intervals={}, **told) for one in (1.0, 1.25)]}
    )
    seen = {"validated_load": 1.0, "headroom_attainment": 0.865}
    short = resealed(found, promise=promise, validity=found.validity.model_copy(update=seen))
    next_ = next_command(options, short, PROFILE)
    yield Said("with headroom fewer", block_of(short, next_=next_), short)


def _of_a_broken_sweep(options: SweepOptions, engine: Kind) -> Iterator[Said]:
    """Yield what a sweep says where what was required is not kept: by draws, or when measured."""
    required = ("p99 ttft <= 500ms", "preemptions == 0")
    for case, at_worst, measured, attainment in (
        ("requirement broken", 0.58, 0.447, 0.995),
        ("requirement broken, measured", 0.48, 0.612, 0.984),
    ):
        broken = RequirementSection(
            text=required[0], at_worst=at_worst, measured=measured, kept=False
        )
        kept = RequirementSection(text=required[1], at_worst=0.0, measured=0.0, kept=True)
        found = profile(verdict="knee", engine_=engine, reason=REASONS["knee"])
        decision = found.decision.model_copy(update={"requirements": [broken, kept]})
        assert found.promise.ttft_ms is not None
        ttft_ms = found.promise.ttft_ms.model_copy(update={"p99": 1e3 * measured})
        seen = {"ttft_ms": ttft_ms, "attainment": attainment}
        promise = found.promise.model_copy(update=seen)
        found = resealed(found, decision=decision, promise=promise)
        asked = replace(options, require=required)
        yield Said(case, block_of(found, next_=next_command(asked, found, PROFILE)), found)


def of_refine(engine: Kind) -> Iterator[Said]:
    ratio = PairedRatio("goodput", 1.09, 1.05, 1.14, True, 0.99, 0.99, 3.0, 3.0)
    for better in (False, True):
        why = f"{REASONS['knee']}{REFINED}nothing better was found"
        one = with_twin(engine)
        one = resealed(one, decision=one.decision.model_copy(update={"reason": why}))
        found = Refinement(
            chosen={"max_num_seqs": 16, "max_num_batched_tokens": 4096},
            paired=PairedResult({"goodput": ratio}, None, 6) if better else None,
            pairs=(),
            outcome=object() if better else None,  # type: ignore[arg-type]
            reason=one.decision.reason,
            trials=(),
            front=(),
            importances=(),
            workload=None,  # type: ignore[arg-type]
            complete=True,
            starts_s=(30.0, 30.0),
            replay_s=540.0,
            pruned=9,
            of_others=0,
            failed=(),
            warnings=(),
        )
        how = RefinePrint(one, PROFILE, TRACE, Path("run"), details=False)
        yield Said("better" if better else "the knee", block_of_refinement(found, how), one)


def of_compare(engine: Kind) -> Iterator[Said]:
    world = Path("world.yaml") if engine == "sim" else None
    for with_profile in (False, True):
        one = with_twin(engine)
        options = CompareOptions(
            trace=TRACE,
            model="tuner:tiny",
            engine="sim" if engine == "sim" else "vllm",
            world=world,
            profile=PROFILE if with_profile else None,
        )
        with saved(one):
            next_ = compare._next(options, is_measured=True)
            not_measured = compare._next(options, is_measured=False)
        how = compare_view.ComparePrint(
            tuned=Tuned(16, "profile.yaml" if with_profile else "--max-num-seqs"),
            facts=facts(engine=engine),
            spent_s=487.0,
            next=next_,
            run_dir=Path("run"),
            warnings=(),
            said_before=0,
            details=False,
        )
        rows = (
            row("worker", "one worker", 0.4, 29.0),
            row("untuned", "untuned", 2.64, 13.6),
            row("tuned", "tuned", 3.48, 6.2, Ratio(8.7, 8.1, 9.4)),
        )
        table = ComparisonTable("very-heavy", 25, "captured", rows)
        case = "with a profile" if with_profile else "without one"
        yield Said(case, compare_view.block_of(table, how), one)
        if with_profile:
            failed = replace(rows[2], numbers=None, ratios={}, errors=(NO_MEMORY,))
            lost = replace(table, rows=(*rows[:2], failed))
            failing = replace(how, next=not_measured)
            yield Said("the tuned one failed", compare_view.block_of(lost, failing), one)


NO_MEMORY = (
    "the engine did not start: No available memory for the cache blocks. Raise "
    "gpu_memory_utilization or kv_cache_memory_bytes, or lower max_model_len."
)


def row(
    name: str, title: str, rps: float, e2el_s: float, ratio: Ratio | None = None
) -> ComparisonRow:
    fields: dict[str, Any] = dict.fromkeys(Numbers.__dataclass_fields__)
    changes = {"requests_per_s": rps, "e2el_p95_s": e2el_s, "e2el_at_least": name == "worker"}
    numbers = Numbers(**fields | changes | {"tpot_s": flat(0.031)})
    return ComparisonRow(
        name, title, 16, numbers, {"requests_per_s": ratio} if ratio else {}, (), ()
    )


@cache
def planned(load: float, replicas: int | None) -> plan_view.FleetPlan:
    one = with_twin("vllm")
    assert one.twin is not None
    asked = PlanOptions(profile=PROFILE, load=load, replicas=replicas)
    return plan._planned(asked, one, restored(one.twin, source="here"))


def of_plan(engine: Kind) -> Iterator[Said]:
    one, few = with_twin(engine), planned(3.0, 1)
    more = [
        replace(step, attainment_middle=0.424) if step.max_num_seqs == 32 else step
        for step in few.steps
    ]
    cases = {
        "enough": planned(1.0, None),
        "more replicas": planned(3.0, None),
        "too few": few,
        "too few, more with another cap": replace(few, best=32, steps=more),
        "never": replace(few, replicas_needed=None),
    }
    for case, found in cases.items():
        options = PlanOptions(profile=PROFILE, load=found.load)
        yield Said(case, plan_view._block(found, one, options), one)


def of_given_slo(one: ServingProfile) -> ServingProfile:
    """Return the profile as if the user had given the SLO, which was derived."""
    slo = one.decision.slo.model_copy(update={"derived": False})
    return resealed(one, decision=one.decision.model_copy(update={"slo": slo}))


def of_verify(engine: Kind) -> Iterator[Said]:
    one = with_twin(engine)
    cases: dict[str, tuple[float, str | None, float]] = {
        "kept": (0.99, None, 0.0),
        "broken": (0.71, None, 0.0),
        "broken by a server that runs": (0.71, URL, 0.0),
        "broken beside others": (0.71, None, 0.7),
    }
    for case, (served, url, others) in cases.items():
        gates = (
            Gate("attainment", served, 0.99, 0.95, served > 0.95, "its bound less 2 points"),
            Gate("tpot_p95_ms", 31.0, 30.0, 36.0, True, "its bound plus 10 %"),
        )
        device = np.array([(1.0, math.nan, math.nan, others, 0.0, *[math.nan] * 3)], DEVICE)
        replays = (replay_of([], device=device),)
        found = Verified(gates, 115.0, {"ttft_p95": 997.0, "e2el_p95": 6050.0}, replays)
        kind = "vllm" if url else engine
        options = VerifyOptions(profile=PROFILE, trace=TRACE, engine=kind, url=url)
        verified = of_given_slo(one) if case == "broken" else one
        yield Said(case, verify_view._block(found, verified, options), verified)
    for right in (0.97, 0.31):
        offline = (
            Gate("choice", right, 0.97, 0.5, right > 0.5, "half of the stored laws"),
            Gate("attainment", 0.995, 0.996, 0.96, True, "its 95 % bound less 2 points"),
        )
        found = Verified(offline, 0.0, {}, ())
        options = VerifyOptions(profile=PROFILE, offline=True)
        case = "follows, offline" if right > 0.5 else "does not follow, offline"
        yield Said(case, verify_view._offline_block(found, one, options), one)


@cache
def machine() -> SimulatedServer:
    """Return a server that keeps its promise, as it looks after a minute and later."""
    return simulated(WORLD, poisson(RATE, 400.0, seed=2), cap=CAP, until_s=400.0)


@cache
def promised() -> Promised:
    one = with_twin("vllm")
    assert one.twin is not None
    twin = restored(one.twin, source="here")
    of_traffic = reference(twin, captured_rps=RATE, validated_load=1.25)
    return Promised(twin, one.decision.slo.slo, CAP, CAPS, 1.0, of_traffic, 0.02, 0.10)


SLOWER = "the canary's time per output token is 1.5 times the baseline's (1.4 to 1.6)"

WATCHED = {
    "still valid": "iterations take 1.01 (95 %: 0.98 to 1.04) times what the profile predicts",
    "drifting": "requests come 1.6 times as often as in the profile's traffic (1.4 to 1.8)",
    "re-tune now": "requests come 1.6 times as often as in the profile's traffic (1.4 to 1.8); for "
    "today's traffic the twin would choose max_num_seqs 32 and not 16",
    "re-tune now, the server is slower": "iterations take 1.50 (95 %: 1.40 to 1.60) times what the "
    "profile predicts",
    "not enough evidence": "too little is known of the server's speed and its requests; about 26 "
    "more windows like these would do",
    "promote": "no measure of the canary is worse than the baseline's by more than 10 %",
    "roll back": SLOWER,
    "roll back, into a file": SLOWER,
    "roll back, and restored": SLOWER,
    "undecided": "the canary's time to first token is 0.8 to 1.3 times the baseline's",
}


def _watched(verdict: str, reason: str) -> tuple[Watch, CanaryGate]:
    """Return a watch that has seen as much as such a verdict takes, and of that what the next
    command asks for."""
    windows = {"not enough evidence": 4, "undecided": 6}.get(verdict, 30)
    requests = 2 if verdict == "not enough evidence" else 49 * windows
    found = Watch(promised(), windows=windows, requests=requests)
    for _ in range(windows):
        if "1.6 times as often" in reason:
            found.traffic.monitors["rate"].add(1.6)
        if "1.50" in reason:
            found.far.add(math.log(1.5))
    return found, CanaryGate(promised(), pairs=windows, requests=requests)


def of_watch(engine: Kind) -> Iterator[Said]:
    one = with_twin(engine)
    for case, reason in WATCHED.items():
        verdict, _, then = case.partition(", ")
        watched, gate = _watched(verdict, reason)
        is_gate = verdict in {"promote", "roll back", "undecided"}
        result = watch_view.WatchResult(
            profile=str(PROFILE),
            url=URL,
            canary=URL if is_gate else None,
            verdict=verdict,
            reason=reason,
            watches=(watched, watched),
            gate=gate if is_gate else None,
            missed=(0, 0),
            gaps=(0, 0),
            restarts=(0, 0),
            rolled_back="serve.yaml is as it was" if then == "and restored" else None,
            skipped=(),
            untold=(),
            warnings=(),
        )
        options = WatchOptions(
            profile=PROFILE,
            url=URL,
            canary=result.canary,
            for_="60s",
            rollback=SERVED if is_gate and then else None,
        )
        yield Said(case, watch_view._block(result, one, options), one)


def test_a_watch_says_first_that_too_few_are_served_today() -> None:
    watched = Watch(promised())
    watched.choice = CapCheck(16, 1.0, attainment=0.71, best_attainment=0.71, requests=500)
    result = watch_view.WatchResult(
        profile=str(PROFILE), url=URL, canary=None, verdict="still valid", reason="as it was",
        watches=(watched,), gate=None, missed=(0,), gaps=(0,), restarts=(0,), rolled_back=None,
        skipped=(), untold=(), warnings=(),
    )  # fmt: skip
    block = watch_view._block(result, with_twin("vllm"), WatchOptions(profile=PROFILE, url=URL))
    assert block.title == "only 71.0 % in SLO: max_num_seqs 16: still valid"


def finished(kind: VerdictKind, cap: int, engine: Kind, attainment: float) -> FinishedSweep:
    """Return a sweep of one trace, or on one kind of node, with a curve of one step."""
    numbers = measurement(cap, attainment=attainment)
    point = CurvePoint(numbers, None, "twin", {}, {})
    verdict = Verdict(kind, cap, (cap, cap), 0.97, REASONS[kind])
    outcome = SweepOutcome(
        conclusion=Conclusion(verdict, (point,), None, by_twin=False),
        slo=Slo(tpot_s=0.05),
        part=None,  # type: ignore[arg-type]
        windows=(),
        arrival_rate_rps=10.0,
        confirmed=None,
        with_headroom=None,
        predictions=(),
        checked=None,
        facts=facts(),
        ladder_engine=engine,
        starts_s=(30.0, 30.0),
        replay_s=270.0,
        dropped={},
        warnings=(),
    )
    of_run = settings(outcome.slo, ceiling=32)
    return FinishedSweep(outcome, of_run, (), Path("run"), "sha256:0", 300.0, 1)


SHARED: dict[str, tuple[SharedCapKind, VerdictKind]] = {
    "shared": ("shared", "knee"),
    "shared, and one still rises": ("shared", "not_reached"),
    "shared, one is served too late": ("shared", "overloaded"),
    "separate": ("separate", "knee"),
    "inconclusive": ("inconclusive", "inconclusive"),
}


def of_several(engine: Kind) -> Iterator[Said]:
    """Yield what a sweep of two traces says."""
    one = with_twin(engine)
    options = SweepOptions(traces=(Path("day.jsonl"), Path("night.jsonl")), engine=engine)
    dearer = {"goodput_rps": StepChange(-0.012, -0.02, -0.004)}
    much_dearer = {"goodput_rps": StepChange(-0.068, -0.081, -0.052)}
    for case, (shared, of_night) in SHARED.items():
        done = {
            "day": finished("knee", 16, engine, 0.99),
            "night": finished(of_night, 8, engine, 0.31 if of_night == "overloaded" else 0.97),
        }
        apart = shared == "separate"
        lost = Price("night", 8, 3.4 if apart else 0.6, 0.97, much_dearer if apart else dearer)
        prices = (Price("day", 16, 0.0, 0.99, {}), lost)
        confidence = 0.42 if shared == "inconclusive" else 0.91
        cap = SharedCap(shared, 16, (8, 16), confidence, {})
        outcomes = {name: each.outcome for name, each in done.items()}
        late = resealed(one, decision=one.decision.model_copy(update={"verdict": of_night}))
        found = MultiTraceSweep(
            found=MultiTraceOutcome(outcomes, cap, prices),
            done=done,
            profiles={"day": PROFILE, "night": PROFILE},
            sealed={"day": one, "night": late},
            shared=None if shared == "separate" else (one, PROFILE),
            starts_s=(30.0, 30.0, 30.0),
            run_dir=Path("run"),
        )
        yield Said(case, multi_trace._block(found, options), late)


def of_kinds(engine: Kind) -> Iterator[Said]:
    """Yield what a sweep on two kinds of nodes says."""
    one = with_twin(engine)
    options = SweepOptions(traces=(TRACE,), engine=engine, ray="auto")
    fast = KindOutcome("h100", "1 GPU", finished("knee", 16, engine, 0.99), 4.1, PROFILE, one)
    slow = KindOutcome("a100", "1 GPU", finished("knee", 8, engine, 0.96), 2.2, PROFILE, one)
    lost = replace(slow, done=EngineError("no memory", hint=""), sealed=None)
    cases = {
        "with prices": [fast, slow],
        "without prices": [replace(each, per_hour=None) for each in (fast, slow)],
        "one failed": [fast, lost],
    }
    for case, found in cases.items():
        yield Said(case, kinds._block(found, options), one)


CASES: dict[str, Callable[[Kind], Iterator[Said]]] = {
    "sweep": of_sweep,
    "several": of_several,
    "kinds": of_kinds,
    "refine": of_refine,
    "compare": of_compare,
    "plan": of_plan,
    "verify": of_verify,
    "watch": of_watch,
}


@pytest.mark.parametrize("command", CASES)
def test_the_block_of_every_verdict_and_engine_is_as_agreed(
    command: str, request: pytest.FixtureRequest
) -> None:
    parts = []
    for engine in ENGINES:
        for said in CASES[command](engine):
            lines = said.block.lines()
            assert len(lines) <= MOST_LINES
            assert max(map(len, lines)) <= WIDTH
            assert not [line for line in lines if "…" in line]  # each says its thing whole
            parts += [f"[{said.case}, {engine}]", *lines, ""]
    update = request.config.getoption("--update-golden")
    golden.check(f"verdicts/{command}.txt", "\n".join(parts), update=update)


@pytest.mark.parametrize("engines", [("vllm", "serve"), ("sim",)], ids=["real", "sim"])
@pytest.mark.parametrize("command", CASES)
def test_the_next_command_works_as_it_is_printed(
    command: str, engines: Sequence[Kind], tmp_path: Path
) -> None:
    """Of what is printed for both real engines, whose profiles differ in nothing that a command
    asks for, one is run."""
    tried = set[str]()
    for said in (one for engine in engines for one in CASES[command](engine)):
        printed = said.block.next
        assert as_a_shell_reads(said.block.lines()) == shlex.split(printed)
        if printed in tried:
            continue
        folder = tmp_path / str(len(tried))
        tried.add(printed)
        folder.mkdir()
        save(said.profile, folder / PROFILE)
        with few_draws():
            run_as_printed(folder, printed)


def test_a_run_whose_budget_had_no_room_for_the_next_cap_goes_on_with_twice_of_it() -> None:
    options = SweepOptions(traces=(TRACE,), seed=3, budget="300s", json=True)
    said = next_command(options, profile(verdict="knee"), PROFILE, unfinished=Path("runs/a"))
    words = {"--trace=prod.jsonl", "--seed=3", "--resume", "--run-dir=runs/a", "--budget=600s"}
    assert said.startswith("tuner sweep ")
    assert set(shlex.split(said)[2:]) == words


def as_a_shell_reads(lines: Sequence[str]) -> list[str]:
    """Return the words of the command that a block ends with, pasted as it stands there."""
    begin = next(number for number, line in enumerate(lines) if line.startswith("  next "))
    typed = "\n".join([lines[begin].removeprefix("  next "), *lines[begin + 1 :]])
    read = ["bash", "-c", f"printf '%s\\0' {typed.strip()}"]
    return subprocess.run(read, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_looking_at_a_profile_leads_on_and_never_back(engine: Kind) -> None:
    one = with_twin(engine)
    for found in (one, resealed(one, twin=None)):
        shown = shlex.split(show._next(found, ShowOptions(profile=PROFILE)))
        assert shown == ["tuner", "report", "profile.yaml"] or engine != "sim"
        assert shown[1] != "show"


@pytest.mark.parametrize("verdict", ["inconclusive", "not_reached"])
def test_of_a_profile_that_more_would_decide_no_rollout_is_next(verdict: str) -> None:
    found = profile(verdict=verdict, engine_="vllm", reason=REASONS[verdict])
    assert after(found, PROFILE, base=SERVED) == "tuner show profile.yaml"
    assert show._next(found, ShowOptions(profile=PROFILE)) == "tuner report profile.yaml"


def test_what_others_must_not_read_is_in_no_command() -> None:
    said = asked_for("sweep", SweepOptions(traces=(TRACE,), overrides=("hf_token=hf_1", "seed=3")))
    assert said == "tuner sweep --trace=prod.jsonl --set=seed=3"
    storage = "postgresql://ann:pw@db/studies"
    shared = RefineOptions(profile=PROFILE, traces=(TRACE,), storage=storage)
    assert asked_for("refine", shared) == (
        "tuner refine profile.yaml --trace=prod.jsonl --storage=postgresql://ann@db/studies"
    )


def run_as_printed(folder: Path, printed: str) -> None:
    """Run what a block ends with. A real engine is not started: what would start one says what it
    would do. A server is the simulated one, on a clock that nobody waits for."""
    first, *words = shlex.split(printed)
    assert first == "tuner"
    for count, name in ((120, TRACE), (110, "day.jsonl"), (100, "night.jsonl")):
        (folder / name).write_text("".join(TRACED[:count]))
    shutil.copy(ROOT / "examples" / "worlds" / "article.yaml", folder / "world.yaml")
    (folder / SERVED).write_text("model: tuner:tiny\nmax-num-seqs: 64\n")
    if "--rollback" in words:
        assert tuner(folder, "apply", PROFILE, SERVED, "--force").returncode == 0
    clock = FreeClock()
    with serving(page_of(machine()), clock) as url:
        words = [word.replace(URL, url) for word in words]
        if words[0] == "watch":
            watched_again(words[1:], folder, clock)
            return
        starts = words[0] in {"sweep", "verify"} and "--engine=sim" not in words
        done = tuner(folder, *words, *(["--dry-run"] if starts else []))
    measures = words[0] == "sweep"
    assert done.returncode in ({0, 5, 6} if measures else {0}), (printed, done.stderr)
    assert done.stdout or words[0] == "report"


def watched_again(words: list[str], folder: Path, clock: FreeClock) -> None:
    asked = get_command(app).commands["watch"].make_context("watch", words).params  # type: ignore[attr-defined]
    assert asked["for_"] == "240s"  # four times as long as it was
    given = {**asked, "profile": Path(asked["profile"]), "for_": "60s"}
    with chdir(folder), suppress(UndecidedError):
        watch(WatchOptions(**given), clock=clock)


TRACED = (ROOT / "traces" / "translation.jsonl").read_text().splitlines(keepends=True)
