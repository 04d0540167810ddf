"""In what two profiles differ, or a profile and what is deployed, with the evidence. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tuner.engines.seam import WHICH_DEVICE, ArgumentValue
from tuner.engines.vllm import values as vllm_values
from tuner.profile.numbers import CapNumbers, CurveStep
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import ServedModel, model_mismatch
from tuner.rollout import rollout
from tuner.rollout.rollout import Deployment
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.seam import Arguments, Overruled, Platform, Stated

Section = Literal["engine", "decision", "promise", "admission", "measured on", "traffic"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the two say differently; None where one says nothing."""

    section: Section
    name: str
    profile: ArgumentValue
    other: ArgumentValue
    evidence: str = ""


def of_deployment(
    profile: ServingProfile, here: Deployment, overruled: Sequence[Overruled] = ()
) -> list[Difference]:
    """Return what applying the profile would change, and what was measured elsewhere.

    ``overruled``: the files that decide after this one; what they state counts in its place.
    """
    if overruled:
        first = overruled[0]
        stated = {name: one for name, one in here.stated.items() if name == "model"}
        decided = replace(here, stated=stated | dict(first.stated))
        found = list(_of_arguments(profile, decided, f"decided elsewhere: {first.place}"))
    else:
        found = list(_of_arguments(profile, here))
    for name, undone in {**rollout.LIMITED, **rollout.OVERRULES}.items():
        if name in here.stated and name not in profile.engine:
            value = here.stated[name].value
            found.append(Difference("engine", name, None, value, f"undoes {undone}"))
    return [*found, *_elsewhere(profile, here, found)]


def of_server(
    profile: ServingProfile,
    arguments: Arguments,
    version: str | None,
    *,
    source: str,
    served: Sequence[ServedModel] = (),
) -> list[Difference]:
    """Return in what a running server differs, as far as it tells: see ``untold``."""
    stated = {name: Stated(value, 0) for name, value in arguments.items()}
    platform = Platform(vllm=Stated(version, 0) if version else None)
    here = Deployment(stated, source, platform, is_new=True)
    found = [one for one in _of_arguments(profile, here) if one.name in stated]
    if (other := model_mismatch(profile, served)) is not None:
        found.insert(0, Difference("engine", "model", other.profile, other.found, other.why))
    return [*found, *_elsewhere(profile, here, found)]


def untold(
    profile: ServingProfile,
    arguments: Arguments,
    *,
    served: Sequence[ServedModel] = (),
) -> list[str]:
    """Return the profile's arguments and variables that a running server does not tell, so nothing
    is known of them."""
    told = {*arguments, *(["model"] if served else [])}
    variables = (profile.provenance.environment or {}).keys() - WHICH_DEVICE
    return [
        *(name for name in rollout.settings(profile, live_knob=False) if name not in told),
        *sorted(variables),
    ]


def _of_arguments(
    profile: ServingProfile, here: Deployment, elsewhere: str = ""
) -> Iterator[Difference]:
    wanted = rollout.settings(profile, live_knob=False)
    model = here.stated.get("model")
    if rollout.model_mismatch(profile, here) is None or model is None:
        wanted.pop("model", None)
    for name, value in wanted.items():
        stated = here.stated.get(name)
        known = stated is not None and not stated.unknown
        if (
            stated is not None
            and known
            and vllm_values.same(flags.comparable(stated.value, value), value)
        ):
            continue
        other = None if stated is None else stated.value
        evidence = _evidence(profile, name, value, other) if known else ""
        if stated is not None and stated.unknown:
            evidence = f"not known here: {stated.unknown}"
        parts = [part for part in (elsewhere if name != "model" else "", evidence) if part]
        yield Difference("engine", name, value, other, "; ".join(parts))


def _elsewhere(
    profile: ServingProfile, here: Deployment, found: Sequence[Difference]
) -> Iterator[Difference]:
    known = {one.name for one in found}
    for one in rollout.mismatches(profile, here):
        if one.subject not in known:
            yield Difference("measured on", one.subject, None, None, one.words)


def of_profiles(one: ServingProfile, other: ServingProfile) -> list[Difference]:
    """Return in what they differ, from what to run to what it rests on."""
    return [
        *_of_engines(one, other),
        *_of_decisions(one, other),
        *_of_promises(one, other),
        *_of_admission(one, other),
        *_of_grounds(one, other),
    ]


def _of_engines(one: ServingProfile, other: ServingProfile) -> Iterator[Difference]:
    for name in {**one.engine, **other.engine}:
        ours, theirs = one.engine.get(name), other.engine.get(name)
        if not vllm_values.same(ours, theirs):
            yield Difference(
                "engine", name, _plain(ours), _plain(theirs), _evidence(one, name, ours, theirs)
            )


def _of_decisions(one: ServingProfile, other: ServingProfile) -> Iterator[Difference]:
    ours, theirs = one.decision, other.decision
    if (ours.verdict, ours.max_num_seqs) != (theirs.verdict, theirs.max_num_seqs):
        yield Difference("decision", "verdict", ours.reason, theirs.reason)
    if ours.interval != theirs.interval:
        yield Difference("decision", "interval", _range(ours.interval), _range(theirs.interval))
    if ours.slo != theirs.slo:
        for name in type(ours.slo).model_fields:
            mine, yours = getattr(ours.slo, name), getattr(theirs.slo, name)
            if mine != yours:
                yield Difference("decision", f"slo.{name}", mine, yours)


def _of_promises(one: ServingProfile, other: ServingProfile) -> Iterator[Difference]:
    ours, theirs = _numbers(one.promise), _numbers(other.promise)
    alike = _replayed(one) == _replayed(other)
    for name, mine in ours.items():
        yours = theirs[name]
        if mine != yours:
            said = _share(mine, yours) if alike else "measured in other windows: not comparable"
            yield Difference("promise", name, mine, yours, said)


def _of_admission(one: ServingProfile, other: ServingProfile) -> Iterator[Difference]:
    for name in ("max_num_queued_tokens", "max_num_queued_reqs"):
        mine, yours = getattr(one.admission, name, None), getattr(other.admission, name, None)
        if mine != yours:
            yield Difference("admission", name, mine, yours)


def _of_grounds(one: ServingProfile, other: ServingProfile) -> Iterator[Difference]:
    ours, theirs = one.provenance, other.provenance
    facts: Sequence[tuple[str, Mapping[str, object], Mapping[str, object]]] = (
        ("", ours.versions, theirs.versions),
        ("", ours.environment or {}, theirs.environment or {}),
        ("device.", ours.device, theirs.device),
    )
    for of, here, there in facts:
        for name in {**here, **there}:
            if (mine := here.get(name)) != (yours := there.get(name)):
                yield Difference("measured on", f"{of}{name}", _plain(mine), _plain(yours))
    if ours.model_digest != theirs.model_digest:
        digests = (ours.model_digest, theirs.model_digest)
        yield Difference("measured on", "model_digest", *digests)
    for name in ("trace_digest", "window", "windows", "arrival_rate_rps", "peak_concurrency"):
        mine, yours = getattr(one.validity, name), getattr(other.validity, name)
        if mine != yours:
            yield Difference("traffic", name, _joined(mine), _joined(yours))


def _evidence(profile: ServingProfile, name: str, one: object, other: object) -> str:
    """Return what the profile knows of both values, where it is the one that was tuned."""
    if name != "max_num_seqs":
        return ""
    steps = {step.max_num_seqs: step for step in profile.curve}
    counts = [value for value in (one, other) if isinstance(value, int)]
    return "; ".join(_of_step(value, steps.get(value)) for value in counts)


def _of_step(value: int, step: CurveStep | None) -> str:
    if step is None:
        return f"{value} is not on the curve"
    numbers = _numbers(step)
    parts = [f"{value}: {100 * step.attainment:.3g} % within the SLO"]
    parts += [
        f"{label} {numbers[name]:g} ms"
        for name, label in (("tpot_p95_ms", "p95 TPOT"), ("e2el_p99_ms", "p99 E2EL"))
        if numbers[name] is not None
    ]
    return ", ".join(parts)


def _numbers(numbers: CapNumbers) -> dict[str, float | None]:
    usage = numbers.kv_cache_usage
    return {
        "attainment": numbers.attainment,
        "goodput_rps": numbers.goodput_rps,
        "requests_per_s": numbers.requests_per_s,
        "output_tokens_per_s": numbers.output_tokens_per_s,
        "ttft_p99_ms": None if numbers.ttft_ms is None else numbers.ttft_ms.p99,
        "tpot_p95_ms": None if numbers.tpot_ms is None else numbers.tpot_ms.p95,
        "e2el_p99_ms": None if numbers.e2el_ms is None else numbers.e2el_ms.p99,
        "kv_cache_usage_peak": None if usage is None else usage.peak,
        "preemptions": numbers.preemptions,
    }


def _share(one: float | None, other: float | None) -> str:
    return "" if not one or other is None else f"{100 * (other / one - 1):+.3g} %"


def _replayed(one: ServingProfile) -> tuple[object, ...]:
    """Return what the promise was measured on: the windows, of which server's share."""
    return one.validity.trace_digest, one.validity.windows, one.validity.arrival_rate_rps


def _joined(value: ArgumentValue | list[str]) -> ArgumentValue:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _range(interval: tuple[int, int]) -> str:
    return f"{interval[0]}-{interval[1]}"


def _plain(value: object) -> ArgumentValue:
    if value is None or isinstance(value, str | int | float | list | dict):
        return value
    return str(value)
