"""The differences of two profiles, or of a profile and what is deployed. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tuner.engines.arguments import WHICH_DEVICE, ArgumentValue
from tuner.profile.profile import ServingProfile, content_of
from tuner.profile.served_models import ServedModel, model_mismatch
from tuner.rollout import fit
from tuner.rollout.edit import alike
from tuner.rollout.fit import Deployment, Host
from tuner.rollout.known import FACTS
from tuner.rollout.server import Arguments
from tuner.rollout.words import is_elsewhere


class Difference(NamedTuple):
    """One difference; None where a side says nothing."""

    section: str
    name: str
    profile: ArgumentValue
    there: ArgumentValue
    why: str = ""


def of_deployment(profile: ServingProfile, here: Deployment) -> list[Difference]:
    """Return what applying the profile would change, and what was measured elsewhere; of a running
    server what it tells otherwise."""
    if here.is_new:
        settings = fit.settings(profile).items()
        wanted = {n: v for n, v in settings if n in here.arguments and n != "model"}
    else:
        wanted = dict(fit.wanted(profile, here.arguments, pin=False))
    changes = []
    for name, value in wanted.items():
        there = here.arguments.get(name)
        if name not in here.arguments or not alike(there, value):
            why = "decided elsewhere" if is_elsewhere(there) else ""
            changes.append(Difference("engine", name, value, there, why))
    if not here.is_new and (clash := fit.clash(here, wanted)) is not None:
        changes.append(Difference("engine", "clash", None, None, str(clash)))
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
    if (model := model_mismatch(profile, served)) is not None:
        changes.insert(0, Difference("engine", "model", model.profile, model.served, model.why))
    return changes


def untold(
    profile: ServingProfile, arguments: Arguments, *, served: Sequence[ServedModel] = ()
) -> list[str]:
    """Return the profile's arguments and variables that a running server does not tell."""
    known = {*arguments, *(["model"] if served else [])}
    variables = (profile.provenance.environment or {}).keys() - WHICH_DEVICE
    return [*(name for name in fit.settings(profile) if name not in known), *sorted(variables)]


def of_profiles(profile: ServingProfile, second: ServingProfile) -> list[Difference]:
    """Return in what they differ, from what to run to what it rests on."""
    mine, theirs = (dict(_facts(content_of(each))) for each in (profile, second))
    return [
        Difference(section, key.partition(".")[2], mine.get(key), theirs.get(key))
        for section, paths in FACTS["compared"].items()
        for key in {**mine, **theirs}
        if any(f"{key}.".startswith(f"{path}.") for path in paths)
        and mine.get(key) != theirs.get(key)
    ]


def _facts(value: object, path: str = "") -> Iterator[tuple[str, ArgumentValue]]:
    """Yield what a profile says, by its path in it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _facts(each, f"{path}.{key}" if path else str(key))
    else:
        yield path, ", ".join(map(str, value)) if isinstance(value, list) else value  # type: ignore[misc] # of JSON
