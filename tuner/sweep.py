"""The run: engine → replay → measure → journal → knee, then the confirming engine.

One engine is started at the ceiling and its cap walks the ladder live; one fresh engine at the
chosen value confirms it, because KV pool and graph sizes follow ``max_num_seqs``. Everything
measured is in the journal before the next step begins, so that a resumed run measures only the
rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from tuner.engines.seam import Engine, EngineFacts, Starter
from tuner.errors import GeneratorLateError, TraceError, UsageError
from tuner.journal import Journal
from tuner.knee import (
    HOPELESS,
    RULED_OUT_REPLAY_S,
    cut_floor,
    decide,
    doubling,
    littles_bound,
    next_trial,
)
from tuner.measure import Measurement, check_generator, measure
from tuner.probe import probe
from tuner.prompts import prompt_token_ids
from tuner.reasons import Verdict
from tuner.records import PlannedRequest, Replay
from tuner.replay import CutRule, replay
from tuner.slo import Slo, Unloaded, derive_slo, fit_unloaded
from tuner.trace import TraceRequest
from tuner.traffic import busiest_window, scale_load
from tuner.uncertainty import Block, Trial
from tuner.window import Window, choose_window, in_window, plan_requests

MIN_WINDOW_S = 5.0
LATE_RETRIES = 2
"""A replay whose requests left late is thrown away and made again so often."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What the user asked of a run."""

    ceiling: int
    slo: Slo | None
    """None: derived on the engine itself."""

    window: str
    step_s: float
    """Longest window a step replays, in seconds, unless ``window`` names another."""

    budget_s: float
    """Engine time to spend, starts and replays together."""

    headroom: float
    fresh: bool
    seed: int


class Watcher(Protocol):
    """Who is told how the run goes."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, window_s: float) -> None: ...
    def live(self, elapsed_s: float, done: int, in_flight: int) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Everything a run found."""

    verdict: Verdict
    slo: Slo
    window: Window
    curve: tuple[Measurement, ...]
    """One a cap, its blocks pooled."""

    blocks: tuple[Block, ...]
    confirmed: Measurement | None
    """The chosen cap on its own fresh engine at the captured load."""

    with_headroom: Measurement | None
    """The same at ``headroom`` times the load."""

    facts: EngineFacts
    """Of the confirming engine where there was one, else of the ladder's."""

    starts_s: tuple[float, ...]
    replay_s: float
    dropped: Mapping[str, int]
    warnings: tuple[str, ...]


async def sweep(
    requests: Sequence[TraceRequest],
    starter: Starter,
    settings: SweepSettings,
    journal: Journal,
    watcher: Watcher,
) -> SweepOutcome:
    """Tune ``max_num_seqs`` for these requests (in order of arrival) on the starter's engine.

    Raises EngineError, GeneratorLateError, TraceError (nothing can be replayed), RunError.
    """
    run = _Sweep(requests, starter, settings, journal, watcher)
    try:
        await run.prepare()
        complete = await run.climb()
        verdict = decide(run.blocks(), ceiling=settings.ceiling, complete=complete)
        confirmed, with_headroom = await run.confirm(verdict)
    finally:
        await run.stop()
    return run.outcome(verdict, confirmed, with_headroom)


class _Sweep:
    """A run under way. What it has measured is the journal's; here are only the live parts."""

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        starter: Starter,
        settings: SweepSettings,
        journal: Journal,
        watcher: Watcher,
    ) -> None:
        self.starter, self.settings = starter, settings
        self.journal, self.watcher = journal, watcher
        self.engine: Engine | None = None
        self.built_for = ""
        self.all_requests = requests
        self.requests: Sequence[TraceRequest] = requests
        self.dropped: dict[str, int] = {}
        self.warnings: list[str] = []
        self.replays: dict[str, Replay] = {}

    # -- the engine, started only when something is left to measure

    async def engine_for(self, max_num_seqs: int, purpose: str) -> Engine:
        """Return the running engine for this purpose with the cap set, starting it if need be."""
        live = purpose == "ladder" and not self.settings.fresh
        built_for = "ladder" if live else f"{purpose} {max_num_seqs}"
        if self.engine is None or self.built_for != built_for:
            await self.stop()
            size = self.settings.ceiling if live else max_num_seqs
            self.watcher.stage(f"starting the engine with max_num_seqs={size}")
            self.engine = await self.starter.start(max_num_seqs=size)
            self.built_for = built_for
            self.journal.append(
                "start", purpose=purpose, max_num_seqs=size, facts=asdict(self.engine.facts)
            )
        tokens = self.engine.facts.arguments["max_num_batched_tokens"]
        assert isinstance(tokens, int)
        await self.engine.set_limits(max_num_seqs=max_num_seqs, max_num_batched_tokens=tokens)
        await self.engine.reset_prefix_cache()
        return self.engine

    async def stop(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            await engine.stop()

    # -- before the ladder: what an idle engine does, the SLO, the window

    async def prepare(self) -> None:
        """Measure unloaded requests, derive the SLO, choose the window; or read them back."""
        probes = list(self.journal.of("probe"))
        if not probes:
            first = self.settings.ceiling if not self.settings.fresh else 1
            engine = await self.engine_for(first, "ladder")
            self.keep_what_fits(engine.facts)
            self.watcher.stage("measuring requests one at a time, for what an idle engine does")
            results = await probe(self.requests, engine, seed=self.settings.seed)
            probes = [self.journal.append("probe", results=[asdict(one) for one in results])]
        else:
            self.keep_what_fits(self.facts())
        results = probes[0]["results"]
        self.unloaded: Unloaded = fit_unloaded(
            [one["input_length"] for one in results],
            [one["ttft_s"] for one in results],
            [one["tpot_s"] for one in results if one["tpot_s"] is not None],
        )
        lengths = [(one.input_length, max(1, one.output_length)) for one in self.requests]
        self.slo = self.settings.slo or derive_slo(self.unloaded, lengths)
        self.window = self.choose_window()
        self.in_window = in_window(self.requests, self.window)
        if not any(one.arrival_s >= self.window.start_s for one in self.in_window):
            raise TraceError(
                f"window {self.window}: nothing to replay", hint="Choose another --window."
            )

    def keep_what_fits(self, facts: EngineFacts) -> None:
        """Drop and count what this engine could not take: never clip, that would be other traffic."""
        limit = facts.max_model_len
        kept = [
            one for one in self.all_requests if one.input_length + one.output_length <= limit
        ]
        dropped = len(self.all_requests) - len(kept)
        if not kept:
            raise TraceError(
                f"every request is longer than max_model_len={limit}",
                hint="Use a model with a longer context, or --set max_model_len=….",
            )
        if dropped:
            self.dropped = {"over_max_model_len": dropped}
            self.warnings.append(
                f"{dropped} of {len(self.all_requests)} requests are longer than "
                f"max_model_len={limit} and were left out"
            )
        self.requests = kept

    def choose_window(self) -> Window:
        """Return the window; ``busiest`` is as long as ``step_s`` and the budget allow."""
        pick = partial(choose_window, self.requests, self.settings.window, busiest=busiest_window)
        window = pick(length_s=self.settings.step_s)
        cost_s = self.cost_s(window)
        left_s = self.settings.budget_s - self.starts_cost_s()
        if self.settings.window == "busiest" and cost_s > left_s:
            window = pick(length_s=max(MIN_WINDOW_S, window.length_s * max(0.0, left_s) / cost_s))
            if window.length_s < MIN_WINDOW_S or self.cost_s(window) > 2 * max(left_s, 1e-9):
                raise UsageError(
                    f"--budget {self.settings.budget_s:.0f}s is too small: two engine starts take "
                    f"about {self.starts_cost_s():.0f}s, the shortest sweep "
                    f"{self.cost_s(window):.0f}s",
                    hint="Give a larger --budget, or a lower --ceiling.",
                )
        self.watcher.stage(
            f"replaying {window.length_s:.0f}s from {window.start_s:.0f}s "
            f"(+ {window.run_in_s:.0f}s run-in); expect about {self.cost_s(window):.0f}s of replay "
            f"and {self.starts_cost_s():.0f}s of engine starts"
        )
        return window

    def cost_s(self, window: Window) -> float:
        """Return about how long the whole run replays, in seconds of engine time."""
        once_s = window.run_in_s + window.length_s
        scored = in_window(self.requests, window)
        caps = doubling(self.settings.ceiling)
        hopeless = sum(self.bound(scored, cap) < HOPELESS for cap in caps)
        confirming = 0 if self.settings.fresh else 2
        return (hopeless + 1) * RULED_OUT_REPLAY_S + (
            2 * (len(caps) - hopeless) + confirming
        ) * once_s

    def starts_cost_s(self) -> float:
        steps = 2 * len(doubling(self.settings.ceiling)) if self.settings.fresh else 2
        return steps * self.facts().start_s

    def bound(self, requests: Sequence[TraceRequest], cap: int) -> float:
        return littles_bound(
            (
                (one.arrival_s, one.input_length, max(1, one.output_length))
                for one in requests
                for _ in range(one.n)
                if one.status == "ok"
            ),
            self.unloaded,
            self.slo,
            cap=cap,
        )

    # -- the ladder

    async def climb(self) -> bool:
        """Measure what the decision asks for; return False when the budget ended it early."""
        while (trial := next_trial(self.blocks(), ceiling=self.settings.ceiling)) is not None:
            once_s = self.window.run_in_s + self.window.length_s
            confirming_s = 0.0 if self.settings.fresh else self.facts().start_s + once_s
            if self.spent_s() + once_s + confirming_s > self.settings.budget_s and self.blocks():
                self.warnings.append("the budget ended the ladder early")
                return False
            bound = self.bound(self.in_window, trial.max_num_seqs)
            floor = cut_floor(self.blocks())
            rule = CutRule(self.slo, floor, RULED_OUT_REPLAY_S if bound < floor else None)
            engine = await self.engine_for(trial.max_num_seqs, "ladder")
            await self.measure_one(
                engine, trial.purpose, trial.max_num_seqs, self.in_window, rule, bound=bound
            )
        return True

    async def measure_one(  # noqa: PLR0913 - what to replay, how, and under which name
        self,
        engine: Engine,
        purpose: str,
        max_num_seqs: int,
        requests: Sequence[TraceRequest],
        rule: CutRule | None,
        *,
        bound: float = 1.0,
    ) -> Measurement:
        """Replay once and journal it; again when our own sending was late."""
        plan = self.plan(engine.facts, requests)
        what = f"{purpose} {max_num_seqs}"
        for attempt in range(LATE_RETRIES + 1):
            self.watcher.trial(what, self.window.run_in_s + self.window.length_s)
            await engine.reset_prefix_cache()
            result = await replay(
                plan,
                engine,
                max_num_seqs=max_num_seqs,
                scored_from_s=self.window.run_in_s,
                window_s=self.window.length_s,
                cut_rule=rule,
                progress=self.watcher.live,
                name=f"{purpose}-{max_num_seqs}-{len(self.journal.events)}",
            )
            try:
                check_generator([result])
            except GeneratorLateError as late:
                self.journal.append("late", what=what, why=str(late), elapsed_s=result.elapsed_s)
                if attempt == LATE_RETRIES:
                    raise
                self.watcher.warn(f"{late}; measuring it again")
            else:
                break
        result = replace(result, attainment_bound=bound)
        event = self.journal.append_replay(
            result, purpose=purpose, max_num_seqs=max_num_seqs, elapsed_s=result.elapsed_s
        )
        self.replays[event["file"]] = result
        measurement = measure([result], self.slo)
        self.watcher.measured(what, measurement)
        return measurement

    def plan(
        self, facts: EngineFacts, requests: Sequence[TraceRequest]
    ) -> tuple[PlannedRequest, ...]:
        prompt: Callable[[TraceRequest], list[int]] = partial(
            prompt_token_ids, seed=self.settings.seed, vocab_size=facts.vocab_size
        )
        return plan_requests(
            requests, self.window, max_model_len=facts.max_model_len, prompt=prompt
        )

    # -- the confirming engine

    async def confirm(self, verdict: Verdict) -> tuple[Measurement | None, Measurement | None]:
        """Measure the chosen cap on its own engine, at the captured load and with headroom."""
        found: list[Measurement | None] = []
        for purpose, load in (("confirm", 1.0), ("headroom", self.settings.headroom)):
            stored = self.stored(purpose)
            if stored:
                found.append(measure(stored, self.slo))
                continue
            once_s = self.window.run_in_s + self.window.length_s
            over = self.spent_s() + once_s > 1.5 * self.settings.budget_s
            if over or (purpose == "headroom" and load <= 1.0):
                found.append(None)
                continue
            requests = scale_load(self.in_window, load, seed=self.settings.seed)
            engine = await self.engine_for(verdict.max_num_seqs, "confirm")
            found.append(
                await self.measure_one(engine, purpose, verdict.max_num_seqs, requests, None)
            )
        return found[0], found[1]

    # -- what is on disk

    def facts(self) -> EngineFacts:
        """Return the facts of the newest engine, running or not."""
        if self.engine is not None:
            return self.engine.facts
        return EngineFacts(**list(self.journal.of("start"))[-1]["facts"])

    def stored(self, purpose: str, max_num_seqs: int | None = None) -> list[Replay]:
        return [
            self.load(event)
            for event in self.journal.of("replay")
            if event["purpose"] == purpose
            and (max_num_seqs is None or event["max_num_seqs"] == max_num_seqs)
        ]

    def load(self, event: dict[str, Any]) -> Replay:
        if event["file"] not in self.replays:
            self.replays[event["file"]] = self.journal.replay(event)
        return self.replays[event["file"]]

    def blocks(self) -> list[Block]:
        return [
            Block(
                Trial(event["max_num_seqs"], event["purpose"]),
                measure([self.load(event)], self.slo),
            )
            for event in self.journal.of("replay")
            if event["purpose"] not in {"confirm", "headroom"}
        ]

    def spent_s(self) -> float:
        replayed = sum(event["elapsed_s"] for event in self.journal.events if "elapsed_s" in event)
        return replayed + sum(event["facts"]["start_s"] for event in self.journal.of("start"))

    def outcome(
        self, verdict: Verdict, confirmed: Measurement | None, with_headroom: Measurement | None
    ) -> SweepOutcome:
        blocks = self.blocks()
        caps = sorted({block.trial.max_num_seqs for block in blocks})
        return SweepOutcome(
            verdict=verdict,
            slo=self.slo,
            window=self.window,
            curve=tuple(measure(self.pooled(cap), self.slo) for cap in caps),
            blocks=tuple(blocks),
            confirmed=confirmed,
            with_headroom=with_headroom,
            facts=self.facts(),
            starts_s=tuple(event["facts"]["start_s"] for event in self.journal.of("start")),
            replay_s=sum(e["elapsed_s"] for e in self.journal.events if "elapsed_s" in e),
            dropped=self.dropped,
            warnings=tuple(self.warnings),
        )

    def pooled(self, cap: int) -> list[Replay]:
        """Return the replays of a cap: the whole ones where there are any, else the cut ones."""
        replays = [
            self.load(event)
            for event in self.journal.of("replay")
            if event["max_num_seqs"] == cap and event["purpose"] not in {"confirm", "headroom"}
        ]
        return [one for one in replays if not one.cut] or replays
