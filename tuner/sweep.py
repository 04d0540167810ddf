"""The run: engine → replay → measure → journal → knee, then the confirming engine.

One engine is started at the ceiling and its cap walks the ladder live; one fresh engine at the
chosen value confirms it, because KV pool and graph sizes follow ``max_num_seqs``. Everything
measured is in the journal before the next step begins, so that a resumed run measures only the
rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tuner.engines.seam import Engine, EngineFacts, Starter
from tuner.errors import GeneratorLateError
from tuner.evidence import Evidence
from tuner.journal import Journal
from tuner.knee import HOPELESS, RULED_OUT_REPLAY_S, cut_floor, decide, doubling, next_trial
from tuner.measure import Measurement, check_generator, measure
from tuner.outcome import SweepOutcome
from tuner.probe import probe
from tuner.prompts import prompt_token_ids
from tuner.readings import Read, while_reading
from tuner.reasons import Verdict
from tuner.records import Replay
from tuner.replay import CutRule, replay
from tuner.settings import SweepSettings
from tuner.slo import Slo, out_of_reach
from tuner.trace import TraceRequest
from tuner.traffic import scale_load
from tuner.window import plan_requests
from tuner.workload import Workload, choose_workload, keep_what_fits, slo_for, workload_in

LATE_RETRIES = 3
"""A replay whose requests left late is thrown away and made again so often."""


class Watcher(Protocol):
    """Who is told how the run goes."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, window_s: float) -> None: ...
    def live(self, elapsed_s: float, done: int, in_flight: int) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None: ...


async def sweep(  # noqa: PLR0913 - what is tuned, on what, how, and who is told
    requests: Sequence[TraceRequest],
    starter: Starter,
    settings: SweepSettings,
    journal: Journal,
    watcher: Watcher,
    *,
    read_device: Read | None = None,
) -> SweepOutcome:
    """Tune ``max_num_seqs`` for these requests (in order of arrival) on the starter's engine.

    Raises EngineError, GeneratorLateError, RunError; TraceError when nothing can be replayed;
    UsageError when the budget is too small.
    """
    run = _Sweep(starter, settings, Evidence(journal), watcher)
    run.read_device = read_device
    try:
        workload = await run.prepare(requests)
        complete = await run.climb(workload)
        blocks = run.evidence.blocks(workload.slo)
        verdict = decide(blocks, ceiling=settings.ceiling, complete=complete)
        if verdict.kind == "overloaded" and (why := out_of_reach(workload.slo, workload.unloaded)):
            verdict = replace(verdict, reason=f"overloaded: {why}")
        confirmed, with_headroom = await run.confirm(workload, verdict)
    finally:
        await run.stop()
    return SweepOutcome(
        verdict=verdict,
        slo=workload.slo,
        window=workload.window,
        curve=run.evidence.curve(workload.slo),
        blocks=tuple(blocks),
        confirmed=confirmed,
        with_headroom=with_headroom,
        facts=run.evidence.facts(),
        starts_s=run.evidence.starts_s(),
        replay_s=run.evidence.replay_s(),
        dropped=run.dropped,
        warnings=tuple(run.warnings),
    )


class _Sweep:
    """A run under way: the engine that is up, and the evidence so far."""

    def __init__(
        self, starter: Starter, settings: SweepSettings, evidence: Evidence, watcher: Watcher
    ) -> None:
        self.starter, self.settings = starter, settings
        self.evidence, self.watcher = evidence, watcher
        self.engine: Engine | None = None
        self.built_for = ""
        self.read_device: Read | None = None
        self.dropped: dict[str, int] = {}
        self.warnings: list[str] = []

    async def engine_for(self, max_num_seqs: int, purpose: str) -> Engine:
        """Return the engine for this purpose with the cap set; started only when it is needed, so
        that a resumed run with nothing left to measure starts none."""
        live = purpose == "ladder" and not self.settings.fresh
        built_for = "ladder" if live else f"{purpose} {max_num_seqs}"
        if self.engine is None or self.built_for != built_for:
            await self.stop()
            size = self.settings.ceiling if live else max_num_seqs
            self.watcher.stage(f"starting the engine with max_num_seqs={size}")
            self.engine = await self.starter.start(max_num_seqs=size)
            self.built_for = built_for
            self.evidence.check_machine(self.engine.facts)
            self.evidence.add_start(self.engine.facts, purpose=purpose, max_num_seqs=size)
        tokens = self.engine.facts.arguments["max_num_batched_tokens"]
        assert isinstance(tokens, int)
        await self.engine.set_limits(max_num_seqs=max_num_seqs, max_num_batched_tokens=tokens)
        return self.engine

    async def stop(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            await engine.stop()

    async def prepare(self, all_requests: Sequence[TraceRequest]) -> Workload:
        """Probe the idle engine and choose what to replay; or read both back."""
        self.evidence.check()
        unloaded = self.evidence.unloaded()
        if unloaded is None:
            engine = await self.engine_for(
                1 if self.settings.fresh else self.settings.ceiling, "ladder"
            )
            requests = self.fitting(all_requests, engine.facts)
            self.watcher.stage("measuring requests one at a time, for what an idle engine does")
            self.evidence.add_probes(
                await probe(requests, engine, prompt=self.prompts(engine.facts))
            )
            unloaded = self.evidence.unloaded()
            assert unloaded is not None
        else:
            requests = self.fitting(all_requests, self.evidence.facts())
        slo = self.settings.slo or slo_for(requests, unloaded)
        window = self.evidence.window()
        if window is not None:
            return workload_in(requests, slo, unloaded, window)
        starts_s = self.starts() * self.evidence.facts().start_s
        confirming = 1 if self.settings.fresh else 2
        workload = choose_workload(
            requests,
            slo,
            unloaded,
            window=self.settings.window,
            step_s=self.settings.step_s,
            ceiling=self.settings.ceiling,
            confirming_replays=confirming,
            replay_budget_s=self.settings.budget_s - starts_s,
        )
        self.evidence.add_window(workload.window)
        cost_s = workload.cost_s(ceiling=self.settings.ceiling, confirming_replays=confirming)
        self.watcher.stage(
            f"a step replays {workload.window} of the trace after {workload.window.run_in_s:.0f}s "
            f"run-in; expect up to {cost_s:.0f}s of replay and {starts_s:.0f}s of engine starts"
        )
        if cost_s + starts_s > 1.1 * self.settings.budget_s:
            self.watcher.warn(
                "the budget may end the run early: shorten --window or raise --budget"
            )
        return workload

    def fitting(self, requests: Sequence[TraceRequest], facts: EngineFacts) -> list[TraceRequest]:
        """Return the requests that this engine can take; count and tell the others."""
        kept, dropped = keep_what_fits(requests, max_model_len=facts.max_model_len)
        if dropped:
            self.dropped = {"over_max_model_len": dropped}
            self.warnings.append(
                f"{dropped} of {len(requests)} requests are longer than "
                f"max_model_len={facts.max_model_len} and were left out"
            )
        return kept

    def starts(self) -> int:
        """Return how many engine starts the run takes if nothing interrupts it."""
        return 2 * len(doubling(self.settings.ceiling)) if self.settings.fresh else 2

    async def climb(self, workload: Workload) -> bool:
        """Measure what the decision asks for; return False when the budget ended it early."""
        ceiling = self.settings.ceiling
        blocks = self.evidence.blocks(workload.slo)
        while (trial := next_trial(blocks, ceiling=ceiling)) is not None:
            cap = trial.max_num_seqs
            confirming_s = (
                0.0 if self.settings.fresh else self.evidence.facts().start_s + workload.replay_s
            )
            needed_s = self.evidence.spent_s() + workload.replay_s + confirming_s
            if blocks and needed_s > self.settings.budget_s:
                if trial.purpose != "again":
                    self.warnings.append(f"the budget left no room for {trial.purpose} {cap}")
                return trial.purpose != "ladder"
            bound, floor = workload.bound(cap), cut_floor(blocks)
            # the ceiling is always tried: that nothing helps must be seen and not only computed
            ruled_out = bound < floor and cap != ceiling
            rule = CutRule(workload.slo, floor, RULED_OUT_REPLAY_S if ruled_out else None)
            engine = await self.engine_for(cap, "ladder")
            result = await self.replay_once(engine, trial.purpose, cap, workload, rule)
            if ruled_out:
                bound = min(bound, result.attainment_bound)
                result = replace(result, attainment_bound=bound, ruled_out=result.cut is not None)
            self.keep(result, trial.purpose, workload.slo)
            blocks = self.evidence.blocks(workload.slo)
        return True

    async def confirm(
        self, workload: Workload, verdict: Verdict
    ) -> tuple[Measurement | None, Measurement | None]:
        """Measure the choice on an engine of its own, at the captured load (unless the ladder's
        engines were its own already) and with headroom."""
        cap, slo = verdict.max_num_seqs, workload.slo
        if verdict.kind == "overloaded":
            return None, None
        rule = CutRule(slo, HOPELESS)
        loads = {"headroom": self.settings.headroom}
        for purpose, load in (loads if self.settings.fresh else {"confirm": 1.0, **loads}).items():
            left_s = self.settings.budget_s - self.evidence.spent_s()
            if (
                self.evidence.confirming(purpose, cap, slo) is not None
                or (purpose == "headroom" and (load <= 1.0 or left_s < workload.replay_s))
                or left_s < 0
            ):
                continue
            raised = scale_load(workload.requests, load, seed=self.settings.seed)
            engine = await self.engine_for(cap, "confirm")
            loaded = replace(workload, requests=tuple(raised))
            result = await self.replay_once(engine, purpose, cap, loaded, rule)
            self.keep(result, purpose, slo)
        return (
            self.evidence.confirming("confirm", cap, slo),
            self.evidence.confirming("headroom", cap, slo),
        )

    def keep(self, result: Replay, purpose: str, slo: Slo) -> None:
        self.evidence.add_replay(result, purpose)
        self.watcher.measured(f"{purpose} {result.max_num_seqs}", measure([result], slo))

    async def replay_once(
        self,
        engine: Engine,
        purpose: str,
        cap: int,
        workload: Workload,
        rule: CutRule,
    ) -> Replay:
        """Replay the workload; again when our own sending was late.

        Raises GeneratorLateError when it stays late.
        """
        window, what = workload.window, f"{purpose} {cap}"
        plan = plan_requests(
            workload.requests,
            window,
            max_model_len=engine.facts.max_model_len,
            prompt=self.prompts(engine.facts),
        )
        retries = LATE_RETRIES
        while True:
            self.watcher.trial(what, workload.replay_s)
            await engine.reset_prefix_cache()
            replaying = replay(
                plan,
                engine,
                max_num_seqs=cap,
                scored_from_s=window.run_in_s,
                window_s=window.length_s,
                cut_rule=rule,
                progress=self.watcher.live,
                name=f"{purpose}-{cap}-{len(self.evidence.journal.events)}",
            )
            result, device = await while_reading(replaying, self.read_device)
            result = replace(result, device=device)
            try:
                if rule.stop_after_s is None:  # else only its iterations count
                    check_generator([result])
            except GeneratorLateError as late:
                self.evidence.add_late(what, str(late), result.elapsed_s)
                if not retries:
                    raise
                retries -= 1
                self.watcher.warn(f"{late}; measuring it again")
            else:
                return result

    def prompts(self, facts: EngineFacts) -> Callable[[TraceRequest], list[int]]:
        return partial(
            prompt_token_ids,
            seed=self.settings.seed,
            vocab_size=facts.vocab_size,
            block_size=self.settings.trace_block_size,
        )
