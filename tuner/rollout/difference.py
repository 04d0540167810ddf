"""The differences of two profiles, or of a profile and what is deployed, with evidence. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.arguments import WHICH_DEVICE, ArgumentValue
from tuner.profile.profile import ServingProfile
from tuner.profile.served_models import ServedModel, model_mismatch
from tuner.rollout import fit
from tuner.rollout.edit import alike
from tuner.rollout.fit import Deployment, Host
from tuner.rollout.known import FACTS
from tuner.rollout.server import Arguments
from tuner.rollout.words import is_elsewhere


@dataclass(frozen=True)
class Difference:
    """One difference; None where a side says nothing."""

    section: str
    name: str
    profile: ArgumentValue
    other: ArgumentValue
    evidence: str = ""


def of_deployment(profile: ServingProfile, here: Deployment) -> list[Difference]:
    """Return what applying the profile would change, and what was measured elsewhere; of a running
    server what it tells otherwise."""
    if here.is_new:
        settings = fit.settings(profile).items()
        wanted = {n: v for n, v in settings if n in here.arguments and n != "model"}
    else:
        wanted = fit.wanted(profile, here.arguments, pin=False)
    changes = []
    for name, value in wanted.items():
        other = here.arguments.get(name)
        if name not in here.arguments or not alike(other, value):
            evidence = _evidence(profile, name, value, other)
            evidence = "decided elsewhere" if is_elsewhere(other) else evidence
            changes.append(Difference("engine", name, value, other, evidence))
    for name, (undone, _) in FACTS["undone_by"].items():
        other = here.arguments.get(name)
        if other is not None and name not in profile.engine and not here.is_new:
            changes.append(Difference("engine", name, None, other, f"undoes {undone}"))
    known = {each.name for each in changes}
    return changes + [
        Difference("measured on", each.subject, None, None, each.words)
        for each in fit.mismatches(profile, here)
        if each.subject not in known
    ]


def of_server(
    profile: ServingProfile,
    arguments: Arguments,
    version: str | None,
    *,
    source: str,
    served: Sequence[ServedModel] = (),
) -> list[Difference]:
    """Return in what a running server differs, as far as it tells: see ``untold``."""
    hosts = [Host(f"{source} has", vllm=version)]
    here = Deployment(arguments=arguments, source=source, hosts=hosts, is_new=True)
    changes = of_deployment(profile, here)
    if (other := model_mismatch(profile, served)) is not None:
        changes.insert(0, Difference("engine", "model", other.profile, other.served, other.why))
    return changes


def untold(
    profile: ServingProfile, arguments: Arguments, *, served: Sequence[ServedModel] = ()
) -> list[str]:
    """Return the profile's arguments and variables that a running server does not tell."""
    known = {*arguments, *(["model"] if served else [])}
    variables = (profile.provenance.environment or {}).keys() - WHICH_DEVICE
    return [*(name for name in fit.settings(profile) if name not in known), *sorted(variables)]


def of_profiles(profile: ServingProfile, other: ServingProfile) -> list[Difference]:
    """Return in what they differ, from what to run to what it rests on."""
    mine, theirs = _facts(profile), _facts(other)
    traffic = [("traffic", "trace_digest"), ("traffic", "windows")]
    is_other_traffic = any(mine[each] != theirs[each] for each in traffic)
    notes = {"promise": "measured in other windows: not comparable"} if is_other_traffic else {}
    order = list(FACTS["compared"])
    differences = []
    for key in sorted({**mine, **theirs}, key=lambda each: order.index(each[0])):
        left, right = mine.get(key), theirs.get(key)
        if left != right or type(left) is not type(right):
            note = _evidence(profile, key[1], left, right) or notes.get(key[0], "")
            differences.append(Difference(*key, left, right, note))
    return differences


def _facts(profile: ServingProfile) -> dict[tuple[str, str], ArgumentValue]:
    """Return what a profile says, by section and name."""
    facts: dict[tuple[str, str], ArgumentValue] = {}
    for section, paths in FACTS["compared"].items():
        for path in paths:
            value, name = _at(profile, path), path.partition(".")[2]
            prefix = "device." if name == "device" else ""
            named = value if isinstance(value, Mapping) else {name: value}
            facts |= {(section, f"{prefix}{key}"): _plain(each) for key, each in named.items()}
    return facts


def _plain(value: object) -> ArgumentValue:
    if isinstance(value, list | tuple):
        return ("-" if isinstance(value, tuple) else ", ").join(map(str, value))
    return value  # type: ignore[return-value] # of JSON


def _at(value: object, path: str) -> object:
    """Return what is at a path of attributes; None where one of them is None."""
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _evidence(profile: ServingProfile, name: str, item: object, other: object) -> str:
    """Return what the profile knows of both values, where it is the one that was tuned."""
    if name != "max_num_seqs":
        return ""
    steps, parts = {step.max_num_seqs: step for step in profile.curve}, []
    for cap in (each for each in (item, other) if isinstance(each, int)):
        if cap not in steps:
            parts.append(f"{cap} is not on the curve")
            continue
        times = [f"{cap}: {steps[cap].attainment:.1%} met the SLO"]
        for label, number in (("p95 TPOT", "tpot_ms.p95"), ("p99 E2EL", "e2el_ms.p99")):
            if (value := _at(steps[cap], number)) is not None:
                times.append(f"{label} {value:g} ms")
        parts.append(", ".join(times))
    return "; ".join(parts)
