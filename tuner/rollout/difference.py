"""In what two profiles differ, or a profile and what is deployed, with the evidence. Pure."""

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

_COMPARED = (
    ("engine", "engine", ""),
    ("decision", "decision.reason", "verdict"),
    ("decision", "decision.interval", "interval"),
    *(
        ("decision", f"decision.slo.{name}", f"slo.{name}")
        for name in ("ttft_ms", "ttft_ms_per_input_token", "tpot_ms", "e2el_ms", "derived")
    ),
    *(
        ("promise", f"promise.{name}", name)
        for name in (
            *("attainment", "goodput_rps", "requests_per_s", "output_tokens_per_s", "preemptions"),
            *("ttft_ms.p99", "tpot_ms.p95", "e2el_ms.p99", "kv_cache_usage.peak"),
        )
    ),
    ("admission", "admission.max_num_queued_tokens", "max_num_queued_tokens"),
    ("admission", "admission.max_num_queued_reqs", "max_num_queued_reqs"),
    ("measured on", "provenance.versions", ""),
    ("measured on", "provenance.environment", ""),
    ("measured on", "provenance.device", "device."),
    ("measured on", "provenance.model_digest", "model_digest"),
    *(
        ("traffic", f"validity.{name}", name)
        for name in ("trace_digest", "window", "windows", "arrival_rate_rps", "peak_concurrency")
    ),
)
"""What of two profiles is compared: its section, where it stands, and its name; of a mapping the
beginning of its names."""


@dataclass(frozen=True)
class Difference:
    """One thing that the two say differently; None where one says nothing."""

    section: str
    name: str
    profile: ArgumentValue
    other: ArgumentValue
    evidence: str = ""


def of_deployment(profile: ServingProfile, here: Deployment) -> list[Difference]:
    """Return what applying the profile would change, and what was measured elsewhere."""
    wanted = fit.wanted(profile, here.told, pin=False, live_knob=False)
    found = list(_of_arguments(profile, here, wanted))
    for name, undone in fit.UNDONE_BY.items():
        if name in here.told and name not in profile.engine:
            found.append(Difference("engine", name, None, here.told[name], f"undoes {undone}"))
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
    here = Deployment(told=arguments, source=source, vllm=version, is_new=True)
    wanted = {n: v for n, v in fit.settings(profile).items() if n in arguments and n != "model"}
    found = list(_of_arguments(profile, here, wanted))
    if (other := model_mismatch(profile, served)) is not None:
        found.insert(0, Difference("engine", "model", other.profile, other.found, other.why))
    return [*found, *_elsewhere(profile, here, found)]


def untold(
    profile: ServingProfile, arguments: Arguments, *, served: Sequence[ServedModel] = ()
) -> list[str]:
    """Return the profile's arguments and variables that a running server does not tell."""
    told = {*arguments, *(["model"] if served else [])}
    variables = (profile.provenance.environment or {}).keys() - WHICH_DEVICE
    return [*(name for name in fit.settings(profile) if name not in told), *sorted(variables)]


def _of_arguments(
    profile: ServingProfile, here: Deployment, wanted: Arguments
) -> Iterator[Difference]:
    for name, value in wanted.items():
        other = here.told.get(name)
        if name in here.told and alike(other, value):
            continue
        evidence = _evidence(profile, name, value, other)
        evidence = "decided elsewhere" if is_elsewhere(other) else evidence
        yield Difference("engine", name, value, other, evidence)


def _elsewhere(
    profile: ServingProfile, here: Deployment, found: Sequence[Difference]
) -> Iterator[Difference]:
    known = {each.name for each in found}
    for each in fit.mismatches(profile, here):
        if each.subject not in known:
            yield Difference("measured on", each.subject, None, None, each.words)


def of_profiles(one: ServingProfile, other: ServingProfile) -> list[Difference]:
    """Return in what they differ, from what to run to what it rests on."""
    ours, theirs = _facts(one), _facts(other)
    is_same_traffic = all(
        getattr(one.validity, name) == getattr(other.validity, name)
        for name in ("trace_digest", "windows")
    )
    order = [section for section, _, _ in _COMPARED]
    found = []
    for section, name in sorted(ours | theirs, key=lambda each: order.index(each[0])):
        mine, yours = ours.get((section, name)), theirs.get((section, name))
        if mine == yours and type(mine) is type(yours):
            continue
        evidence = _evidence(one, name, mine, yours) if section == "engine" else ""
        if section == "promise":
            incomparable = "measured in other windows: not comparable"
            evidence = _share(mine, yours) if is_same_traffic else incomparable
        found.append(Difference(section, name, mine, yours, evidence))
    return found


def _facts(profile: ServingProfile) -> dict[tuple[str, str], ArgumentValue]:
    """Return what a profile says, by section and name."""
    found: dict[tuple[str, str], ArgumentValue] = {}
    for section, path, name in _COMPARED:
        value = _at(profile, path)
        if isinstance(value, Mapping):
            found |= {(section, f"{name}{key}"): _plain(each) for key, each in value.items()}
        else:
            found[section, name] = _plain(value)
    return found


def _at(value: object, path: str) -> object:
    """Return what is at a path of attributes; None where one of them is None."""
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _evidence(profile: ServingProfile, name: str, one: object, other: object) -> str:
    """Return what the profile knows of both values, where it is the one that was tuned."""
    if name != "max_num_seqs":
        return ""
    steps = {step.max_num_seqs: step for step in profile.curve}
    said = []
    for cap in (each for each in (one, other) if isinstance(each, int)):
        if cap not in steps:
            said.append(f"{cap} is not on the curve")
            continue
        parts = [f"{cap}: {steps[cap].attainment:.1%} met the SLO"]
        for label, number in (("p95 TPOT", "tpot_ms.p95"), ("p99 E2EL", "e2el_ms.p99")):
            if (value := _at(steps[cap], number)) is not None:
                parts.append(f"{label} {value:g} ms")
        said.append(", ".join(parts))
    return "; ".join(said)


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
