"""The result of a sweep or a refinement: its outcome, its warnings and its profile. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from msgspec import convert

from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.profile.evidence import admission, pack
from tuner.profile.profile import (
    Decision,
    Promise,
    ServingProfile,
    content_of,
    seal,
)
from tuner.replay.numbers import Measurement, measure
from tuner.replay.soundness import OURS
from tuner.runs.bench import fitting
from tuner.runs.journal import CONFIRMING, Failed, Journal
from tuner.runs.sweep.conclusion import (
    Basis,
    Conclusion,
    SweepSettings,
    conclude,
    confirmed,
    numbers_by_twin,
)
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import HALF, KV_FULL, SPEED_SD_LIMIT
from tuner.traffic.description import FEW_REQUESTS
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.slo import holds, out_of_reach
from tuner.traffic.workload import slo_for, workload_of
from tuner.twin.decide import OBJECTIVE
from tuner.twin.samples import NUMBERS
from tuner.twin.verdict import ADD_REPLICAS, BEFORE_THAT, Verdict, never_binds

SURE_ON_A_BUSY_MACHINE = 0.9
"""Most confidence in what was measured beside others: it is below the 0.95 that counts as sure."""

LAW_REACH = 2.0
"""Times the largest batch that was timed, up to which the law predicts a larger cap: it rises there
as in its upper half."""

SHORTENED = 0.9
"""Share of the step of the options: less than a tenth shorter is not worth a word."""

RETUNE_WHEN = [
    "the GPU, the model, its revision or its quantisation changes",
    "the vLLM version changes",
    "peak concurrency exceeds what was validated",
    "prompt or output lengths shift",
]

DECIDED = ("max_num_seqs", "interval", "confidence", "reason")
"""What a profile keeps of a verdict as it is."""

SAME = ("device", "versions", "environment", "sampling")
"""What a profile keeps of an engine as it reported it."""

ALIKE = (
    "attainment", "goodput_rps", "requests_per_s", "output_tokens_per_s", "preemptions",
    "recomputed_tokens", "running_peak",
)  # fmt: skip
"""Numbers that a measurement and a profile hold alike; times are milliseconds in a profile."""

JSON = {
    "decision": (
        "verdict", "max_num_seqs", "interval", "confidence", "reason", "slo", "requirements",
    ),
    "promise": ("checked",),
    "provenance": ("engine_starts", "engine_seconds", "warnings"),
}  # fmt: skip
"""Section of a profile → its keys in what ``tuner sweep --json`` prints."""


class SweepOutcome:
    """The result of a run, the confirming replays included.

    ``confirmed`` is the chosen cap on its own fresh engine at the recorded load, ``with_headroom``
    at more; ``unconfirmed`` says why there is no such replay, ``checked`` compares the twin with
    it, and ``front_end`` is what it came through. ``busy`` says by what it was seen that others
    used the machine.
    """

    def __init__(
        self,
        conclusion: Conclusion,
        basis: Basis,
        requests: Sequence[TraceRequest],
        facts: EngineFacts | None = None,
    ) -> None:
        """``requests`` are all that came, ``facts`` of the engine that the choice is for, where it
        is not the newest."""
        self.basis, journal, slo = basis, basis.journal, basis.workload.slo
        self.facts = facts or journal.facts()
        self.conclusion, self.checked, self.front_end = confirmed(conclusion, basis)
        cap, view = self.conclusion.verdict.max_num_seqs, self.conclusion.view
        every = [journal.confirming(purpose, cap) for purpose in CONFIRMING]
        self.confirmed, self.with_headroom = (
            measure(each, slo) if each else None for each in every
        )
        failed = [each.why for each in journal.of(Failed) if each.purpose in CONFIRMING]
        why = failed[-1] if failed else "there was no time for it"
        self.unconfirmed = None if self.confirmed else why
        self.busy = next((each for each in journal.flaws() if not each.startswith(OURS)), None)
        if self.busy is None and view is not None and view.machine.speed_sd > SPEED_SD_LIMIT:
            self.busy = f"its speed varied by {view.machine.speed_sd:.0%}"
        self.verdict = self._judged()
        self.warnings = [*self.verdict.warnings, *self._doubts(), *self._limits(requests)]

    @property
    def holds_with_headroom(self) -> bool:
        """Whether the chosen cap holds with the load raised, as it was replayed.

        It holds where it still served half of the requests in time, as many but for next to nothing
        as in the same windows as recorded, and kept what is required there.
        """
        raised, base = self.with_headroom, self.conclusion.chosen.measured or self.confirmed
        if raised is None or base is None:
            return False
        required = [each for each in self.verdict.requirements if each.requirement.at_headroom]
        return holds(base.attainment, raised.attainment) and all(each.kept for each in required)

    def _judged(self) -> Verdict:
        """Return the verdict with what was replayed, as recorded and with headroom, of all that is
        required. It is not sure on a busy machine, and blames neither the load nor the ceiling for
        an SLO that an idle engine breaks."""
        verdict, workload, checks = self.conclusion.verdict, self.basis.workload, []
        for check in verdict.requirements:
            required = check.requirement
            seen = self.with_headroom if required.at_headroom else self.confirmed
            if seen is not None and (seen.cut is None or required.name == "attainment"):
                measured = required.value_in(seen)
                check = RequirementCheck.of(required, check.at_worst, measured)  # noqa: PLW2901
            checks.append(check)
        verdict = replace(verdict, requirements=tuple(checks))
        best = max(point.numbers.attainment for point in self.conclusion.curve)
        if best < HALF and (why := out_of_reach(workload.slo, workload.unloaded)) is not None:
            others = tuple(each for each in verdict.warnings if each != ADD_REPLICAS)
            verdict = replace(verdict, kind="overloaded", reason=why, warnings=others)
        if self.busy is None:
            return verdict
        reason = f"{verdict.reason}; measured on a busy machine: {self.busy}"
        sure = min(verdict.confidence, SURE_ON_A_BUSY_MACHINE)
        return replace(verdict, confidence=sure, reason=reason)

    # Warnings

    def _doubts(self) -> Iterator[str]:
        """Yield what is against the choice: a busy machine, no confirmation, too little memory, and
        a headroom that does not hold."""
        seen, headroom = self.confirmed, self.basis.settings.headroom
        cure = "raise gpu_memory_utilization, or require preemptions == 0"
        if self.busy is not None:
            yield (
                f"the machine was busy ({self.busy}): the numbers are of what else ran too; sweep "
                "again when nothing else does"
            )
        if seen is None:
            yield (
                f"no fresh engine confirmed the choice: {self.unconfirmed}; give a larger "
                "--budget, or try it with tuner verify"
            )
            return
        if seen.preemptions:
            yield (
                f"the confirming engine preempted {seen.preemptions} times at {seen.max_num_seqs} "
                f"and computed {seen.recomputed_tokens} tokens again: {cure}"
            )
        elif seen.kv_cache_usage is not None and seen.kv_cache_usage.peak > KV_FULL:
            yield (
                f"the KV cache of the confirming engine was {seen.kv_cache_usage.peak:.0%} full at "
                f"{seen.max_num_seqs}: a little more load preempts; {cure}"
            )
        if headroom > 1 and self.with_headroom is None:
            yield (
                f"{headroom:g} times the load was not replayed, only the twin predicts it: give a "
                "larger --budget"
            )
        elif headroom > 1 and not self.holds_with_headroom:
            yield (
                f"in the windows that were replayed the choice does not hold at {headroom:g} times "
                f"the load: {BEFORE_THAT}"
            )

    def _limits(self, requests: Sequence[TraceRequest]) -> Iterator[str]:
        """Yield what limited what was seen."""
        journal, workload, wanted_s = (
            self.basis.journal,
            self.basis.workload,
            self.basis.settings.step_s,
        )
        if (doubt := self.conclusion.doubt) is not None:
            yield (
                f"{doubt}, so the windows that were replayed decide alone: they say less of the "
                "rest of the trace; a larger --budget or a quieter machine lets the twin decide"
            )
        if (count := len(workload.twin_requests)) < FEW_REQUESTS:
            yield (
                f"a tuning of {count} request{'s' * (count != 1)} says little: what is sure of "
                "them is not sure of the next ones; capture more"
            )
        yield from self.facts.cautions
        for flaw in [flaw for flaw in journal.flaws() if flaw.startswith(OURS)][:1]:
            yield f"{flaw}: the times and their intervals include that"
        if workload.step_s < SHORTENED * wanted_s:
            yield (
                f"the budget shortened the steps from {wanted_s:.0f}s to {workload.step_s:.0f}s: "
                "less was seen than a larger --budget would show"
            )
        yield from fitting(requests, journal.facts().max_model_len)[1]
        ended = [each.why for each in journal.of(Failed) if each.purpose not in CONFIRMING]
        if ended and not journal.is_complete():
            yield f"the ladder ended early: {ended[-1]}"

    # The profile

    def profile(self, origin: Mapping[str, Any]) -> ServingProfile:
        """Seal everything into a serving profile. ``origin`` holds what of its provenance only the
        command knows: tuner's version, seed, time and wall seconds."""
        verdict, facts, front_end = self.verdict, self.facts, self.front_end
        journal, workload, raised = self.basis.journal, self.basis.workload, self.with_headroom
        view = None if self.conclusion.promised is None else self.conclusion.view
        starts, decision, promise = journal.starts(), self._decision(), self._promise()
        starts_s = sum(start.facts.start_s for start in starts)
        served = [each for each in (self.conclusion.chosen.numbers, raised) if each]
        law = None if view is None else view.fitted.law
        confirmed_by = "server" if facts.is_served else "inproc"
        content = {
            "schema_version": 1,
            "engine": {**facts.arguments, "max_num_seqs": verdict.max_num_seqs},
            "decision": decision,
            "baseline": self._baseline(),
            "curve": [
                {
                    **_numbers(point.numbers),
                    "max_num_seqs": point.numbers.max_num_seqs,
                    "cut": point.measured is not None and point.measured.cut is not None,
                    "source": point.source,
                    "intervals": point.intervals,
                    "measured": point.measured and _numbers(point.measured),
                }
                for point in self.conclusion.curve
            ],
            "promise": promise,
            "admission": admission(
                decision, promise, law, token_budget=facts.max_num_batched_tokens
            ),
            "validity": {
                "peak_concurrency": max(each.in_flight_peak for each in served),
                "validated_load": self.basis.settings.headroom if self.holds_with_headroom else 1.0,
                "trace_digest": journal.plan["trace_digest"],
                "window": str(workload.part),
                "windows": [str(workload.window)],
                "arrival_rate_rps": workload.arrival_rate_rps,
                "retune_when": RETUNE_WHEN,
            },
            "provenance": {
                "engine": starts[0].facts.engine,
                "confirm": confirmed_by if self.confirmed else None,
                "model": facts.arguments["model"],
                "engine_starts": len(starts),
                "engine_seconds": {"starts": starts_s, "replay": journal.replay_s()},
                **{name: getattr(facts, name) for name in SAME},
                **origin,
            },
            "front_end": front_end
            and {"contention": front_end.contention, "delay_ms": front_end.delay_s * 1e3},
        }
        return seal(convert(content, ServingProfile), b"" if view is None else pack(view))

    def _decision(self) -> Decision:
        verdict, slo = self.verdict, self.basis.workload.slo
        content = {
            **{name: getattr(verdict, name) for name in DECIDED},
            "verdict": verdict.kind,
            "busy": self.busy,
            "objective": OBJECTIVE,
            "slo": {
                **dict.fromkeys(("ttft_ms", "tpot_ms", "e2el_ms")),
                **{f"{name}_ms": 1e3 * limit_s for name, limit_s in slo.limits_s().items()},
                "ttft_ms_per_input_token": slo.ttft_s_per_input_token * 1e3 or None,
                "derived": slo.derived,
            },
            "requirements": list(verdict.requirements),
        }
        return convert(content, Decision)

    def _promise(self) -> Promise:
        cap, view = self.verdict.max_num_seqs, self.conclusion.view
        samples, checked, predicted = self.conclusion.promised, self.checked, []
        if view is not None and samples is not None:
            predicted = [
                {
                    **_numbers(numbers_by_twin(view, samples, cap, raised=raised)),
                    "load": view.loads.headroom if raised else 1.0,
                    "intervals": samples.intervals(cap, raised=raised, names=NUMBERS),
                }
                for raised in (False, True)[: 1 + samples.has_headroom]
            ]
        why = (
            f"not confirmed: {self.unconfirmed}; confirm it with tuner verify PROFILE --trace TRACE"
        )
        numbers = {
            each.name: (each.predicted, max(0.0, each.low), each.high, each.measured)
            for each in checked or ()
        }
        checks = None if checked is None else numbers
        source = "ladder" if samples is None else "twin"
        content = {
            **_numbers(self.confirmed or self.conclusion.chosen.numbers),
            "load": 1.0,
            "source": "confirming run" if self.confirmed else source,
            "predicted": predicted,
            "checked": why if self.unconfirmed else checks,
        }
        return convert(content, Promise)

    def _baseline(self) -> dict[str, Any] | None:
        """Return the cap that is set now, by ``--base`` or by vLLM itself, with what it gives the
        same traffic: predicted by the twin, or as replayed. Where neither covers so large a cap,
        the largest that was tried stands for it. None where nothing is known of what is set."""
        if (now := self.basis.journal.plan.get("now")) is None:
            return None
        (cap, is_stated), view = now, self.conclusion.view
        known = {point.numbers.max_num_seqs: point.numbers for point in self.conclusion.curve}
        most, at, numbers = max(known), cap, known.get(cap)
        if numbers is None and view is not None and self.conclusion.promised is not None:
            numbers = numbers_by_twin(view, view.promised((cap,)), cap)
            if numbers.running_peak > max(most, LAW_REACH * view.fitted.extrapolated_from):
                numbers = None
        if numbers is None and cap > most and known[most].cut is None:
            at, numbers = most, known[most]
        return {
            "max_num_seqs": cap,
            "source": "base" if is_stated else "default",
            "never_filled": numbers is not None and never_binds(numbers),
            "numbers_at": at,
            "numbers": numbers and _numbers(numbers),
        }


def rescore(
    requests: Sequence[TraceRequest], settings: SweepSettings, journal: Journal
) -> SweepOutcome:
    """Return what the measurements of a run say under ``settings.slo``, or the derived one.

    Raises RunError when the run had not come far enough.
    """
    unloaded, choice = journal.unloaded(), journal.selection()
    if unloaded is None or choice is None or not journal.made():
        raise RunError(
            f"{journal.run_dir}: nothing was measured that could be rescored",
            hint="Continue it first: tuner resume RUN_DIR.",
        )
    kept, _ = fitting(requests, journal.facts().max_model_len)
    slo = settings.slo or slo_for(kept, journal.unloaded("confirm") or unloaded)
    workload = workload_of(kept, slo, unloaded, choice.part, choice.windows[0], choice.step_s)
    basis = Basis(journal, workload, settings)
    return SweepOutcome(conclude(basis), basis, requests)


def _numbers(numbers: Measurement) -> dict[str, Any]:
    """Return what every section about one cap holds."""
    usage, spreads = numbers.kv_cache_usage, {}
    for name in ("ttft", "tpot", "itl", "e2el", "queue"):
        spread = getattr(numbers, f"{name}_s")
        spreads[f"{name}_ms"] = spread and {
            share: 1e3 * seconds for share, seconds in asdict(spread).items()
        }
    return {
        **{name: getattr(numbers, name) for name in ALIKE},
        **spreads,
        "kv_cache_usage": usage and asdict(usage),
        "binds": {
            "slots": numbers.cap_bound_share,
            "kv_blocks": max(0.0, numbers.kv_bound_share - numbers.token_bound_share),
            "token_budget": numbers.token_bound_share,
        },
    }


def json_object(profile: ServingProfile, *, run_dir: str, path: str | None) -> dict[str, Any]:
    """Return the object that ``tuner sweep --json`` prints of a profile that is written there;
    None: nowhere."""
    content = content_of(profile)
    picked = {name: content[part][name] for part, names in JSON.items() for name in names}
    sections = {name: content[name] for name in ("curve", "baseline", "front_end")}
    return {**picked, **sections, "run_dir": run_dir, "profile": path}
