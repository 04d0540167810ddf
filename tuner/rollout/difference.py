"""The differences of two profiles, or of a profile and what is deployed, with evidence. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.arguments import WHICH_DEVICE, ArgumentValue
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import ServedModel, model_mismatch
from tuner.rollout import fit
from tuner.rollout.edit import alike
from tuner.rollout.fit import Deployment
from tuner.rollout.words import is_elsewhere

Arguments = Mapping[str, ArgumentValue]

_COMPARED = {
    "engine": ("engine", ["engine"]),
    "decision": (
        "decision",
        ["verdict", "interval", *(f"slo.{n}" for n in ("ttft_ms", "tpot_ms", "e2el_ms"))],
    ),
    "promise": (
        "promise",
        [
            *("attainment", "goodput_rps", "output_tokens_per_s", "preemptions"),
            *("ttft_ms.p99", "tpot_ms.p95", "e2el_ms.p99", "kv_cache_usage.peak"),
        ],
    ),
    "admission": ("admission", ["max_num_queued_tokens", "max_num_queued_reqs"]),
    "measured on": ("provenance", ["versions", "environment", "device", "model_digest"]),
    "traffic": (
        "validity",
        ["trace_digest", "window", "windows", "arrival_rate_rps", "peak_concurrency"],
    ),
}
"""Section of a comparison → the profile's section, and what of it is compared."""


@dataclass(frozen=True)
class Difference:
    """One difference; None where a side says nothing."""

    section: str
    name: str
    profile: ArgumentValue
    other: ArgumentValue
    evidence: str = ""


def of_deployment(profile: ServingProfile, here: Deployment) -> list[Difference]:
    """Return what applying the profile would change, and what was measured elsewhere."""
    wanted = fit.wanted(profile, here.arguments, pin=False, live_knob=False)
    changes = list(_of_arguments(profile, here, wanted))
    for name, undone in fit.UNDONE_BY.items():
        if name in here.arguments and name not in profile.engine:
            changes.append(
                Difference("engine", name, None, here.arguments[name], f"undoes {undone}")
            )
    return [*changes, *_elsewhere(profile, here, changes)]


def of_server(
    profile: ServingProfile,
    arguments: Arguments,
    version: str | None,
    *,
    source: str,
    served: Sequence[ServedModel] = (),
) -> list[Difference]:
    """Return in what a running server differs, as far as it tells: see ``untold``."""
    here = Deployment(arguments=arguments, source=source, vllm=version, is_new=True)
    wanted = {n: v for n, v in fit.settings(profile).items() if n in arguments and n != "model"}
    changes = list(_of_arguments(profile, here, wanted))
    if (other := model_mismatch(profile, served)) is not None:
        changes.insert(0, Difference("engine", "model", other.profile, other.found, other.why))
    return [*changes, *_elsewhere(profile, here, changes)]


def untold(
    profile: ServingProfile, arguments: Arguments, *, served: Sequence[ServedModel] = ()
) -> list[str]:
    """Return the profile's arguments and variables that a running server does not tell."""
    known = {*arguments, *(["model"] if served else [])}
    variables = (profile.provenance.environment or {}).keys() - WHICH_DEVICE
    return [*(name for name in fit.settings(profile) if name not in known), *sorted(variables)]


def _of_arguments(
    profile: ServingProfile, here: Deployment, wanted: Arguments
) -> Iterator[Difference]:
    for name, value in wanted.items():
        other = here.arguments.get(name)
        if name not in here.arguments or not alike(other, value):
            evidence = _evidence(profile, name, value, other)
            evidence = "decided elsewhere" if is_elsewhere(other) else evidence
            yield Difference("engine", name, value, other, evidence)


def _elsewhere(
    profile: ServingProfile, here: Deployment, changes: Sequence[Difference]
) -> Iterator[Difference]:
    known = {each.name for each in changes}
    for each in fit.mismatches(profile, here):
        if each.subject not in known:
            yield Difference("measured on", each.subject, None, None, each.words)


def of_profiles(profile: ServingProfile, other: ServingProfile) -> list[Difference]:
    """Return in what they differ, from what to run to what it rests on."""
    is_same_traffic = all(
        _at(profile.validity, name) == _at(other.validity, name)
        for name in ("trace_digest", "windows")
    )
    differences = []
    for section in _COMPARED:
        mine, theirs = _facts(profile, section), _facts(other, section)
        for name in [*mine, *(theirs.keys() - mine.keys())]:
            one, two = mine.get(name), theirs.get(name)
            if one == two and type(one) is type(two):
                continue
            evidence = _evidence(profile, name, one, two) if section == "engine" else ""
            if section == "promise":
                incomparable = "measured in other windows: not comparable"
                evidence = _share(one, two) if is_same_traffic else incomparable
            differences.append(Difference(section, name, one, two, evidence))
    return differences


def _facts(profile: ServingProfile, section: str) -> dict[str, ArgumentValue]:
    """Return what a profile says in a section, by name."""
    where, paths = _COMPARED[section]
    facts: dict[str, ArgumentValue] = {}
    for path in paths:
        value = _at(profile, path if path == where else f"{where}.{path}")
        prefix = f"{path}." if path == "device" else ""
        if isinstance(value, Mapping):
            facts |= {f"{prefix}{key}": _plain(each) for key, each in value.items()}
        else:
            facts[path] = _plain(value)
    return facts


def _at(value: object, path: str) -> object:
    """Return what is at a path of attributes; None where one of them is None."""
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _evidence(profile: ServingProfile, name: str, one: object, other: object) -> str:
    """Return what the profile knows of both values, where it is the one that was tuned."""
    if name != "max_num_seqs":
        return ""
    steps, parts = {step.max_num_seqs: step for step in profile.curve}, []
    for cap in (each for each in (one, other) if isinstance(each, int)):
        if cap not in steps:
            parts.append(f"{cap} is not on the curve")
            continue
        times = [f"{cap}: {steps[cap].attainment:.1%} met the SLO"]
        for label, number in (("p95 TPOT", "tpot_ms.p95"), ("p99 E2EL", "e2el_ms.p99")):
            if (value := _at(steps[cap], number)) is not None:
                times.append(f"{label} {value:g} ms")
        parts.append(", ".join(times))
    return "; ".join(parts)


def _share(one: ArgumentValue, other: ArgumentValue) -> str:
    if not isinstance(one, int | float) or not isinstance(other, int | float) or not one:
        return ""
    return f"{100 * (other / one - 1):+.3g}%"


def _plain(value: object) -> ArgumentValue:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(map(str, value))
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return value  # type: ignore[return-value] # of JSON
