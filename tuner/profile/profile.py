"""The serving profile, sealed, written and read: what to run, and what it rests on."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from tuner.engines.arguments import ArgumentValue
from tuner.errors import ProfileError, TargetError
from tuner.profile.numbers import (
    Admission,
    Baseline,
    CurveStep,
    FrontEndSection,
    Promise,
    Twin,
)
from tuner.profile.schema import (
    Decision,
    Provenance,
    ServingProfile,
    Validity,
    contradictions,
)
from tuner.profile.summary import block_of, facts_of
from tuner.system import files, yaml_strict
from tuner.system.printable import printable

_RERUN = "Restore the file as tuner wrote it, or run tuner sweep again."
_HEAD = (
    "Serving profile: roll it out with `tuner apply`; check it with `tuner verify`.",
    "Do not edit: the digest covers every value. Comments are not part of it.",
)


def seal(  # noqa: PLR0913 - one argument a section
    *,
    engine: Mapping[str, ArgumentValue],
    decision: Decision,
    baseline: Baseline | None = None,
    curve: list[CurveStep],
    promise: Promise,
    admission: Admission | None,
    validity: Validity,
    provenance: Provenance,
    twin: Twin | None,
    front_end: FrontEndSection | None = None,
) -> ServingProfile:
    """Put the sections together under their digest. Raises ProfileError if they contradict."""
    profile = ServingProfile.model_validate(
        {
            "schema_version": 1,
            "engine": dict(engine),
            "decision": decision,
            "baseline": baseline,
            "curve": curve,
            "promise": promise,
            "admission": admission,
            "validity": validity,
            "provenance": provenance,
            "front_end": front_end,
            "twin": twin,
            "digest": "",
        }
    )
    for path, fault in contradictions(profile):
        raise ProfileError(
            f"serving profile: {'.'.join(map(str, path))}: {fault}", hint="The sections must agree."
        )
    return profile.model_copy(update={"digest": _digest(profile.model_dump(mode="json"))})


def dump(profile: ServingProfile) -> str:
    """Return the profile as YAML that ``parse`` reads back to an equal profile. On top stands what
    it says, in comments."""
    said = [*block_of(profile).lines(), *facts_of(profile)]
    head = "".join(f"# {printable(line)}".rstrip() + "\n" for line in (*_HEAD, "", *said))
    return head + "".join(f"{line}\n" for line in _page(profile.model_dump(mode="json")))


def _page(content: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield the lines of a page that a person reviews: a line for each value of a section, and for
    each row of a list."""
    for key, value in content.items():
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict) and value and not indent:
            yield f"{key}:"
            yield from _page(value, "  ")
        elif isinstance(value, list) and isinstance(first, dict):
            yield f"{indent}{key}:"
            yield from (f"{indent}- {yaml_strict.dump(row, is_flow=True)}" for row in value)
        elif isinstance(first, str):
            yield from (f"{indent}{line}" for line in yaml_strict.dump({key: value}).splitlines())
        else:
            yield f"{indent}{key}: {yaml_strict.dump(value, is_flow=True)}"


def parse(text: str, *, source: str) -> ServingProfile:
    """Read a profile that ``dump`` wrote. Raises ProfileError with the place and the cure."""
    root = yaml_strict.compose(text, source=source, error=ProfileError, plain=True)
    data = yaml_strict.construct(root, source=source, error=ProfileError) if root else None
    if root is None or not isinstance(data, dict) or "schema_version" not in data:
        raise ProfileError(
            f"{source}: not a serving profile: schema_version is missing",
            hint="Give the file that tuner sweep wrote; the file to write into comes second.",
        )
    if data["schema_version"] != 1 or isinstance(data["schema_version"], bool):
        raise _fault(
            ("schema_version",),
            f"is {data['schema_version']!r}, this tuner reads 1",
            source=source,
            hint="Use the tuner that wrote it, or run tuner sweep again.",
        )
    if "digest" not in data:
        raise ProfileError(
            f"{source}: digest: is missing: the file is cut short or incomplete", hint=_RERUN
        )
    try:
        profile = ServingProfile.model_validate(data)
    except ValidationError as problem:
        raise _schema_fault(problem, source=source) from None
    for path, fault in contradictions(profile):
        raise _fault(path, fault, source=source, hint=_RERUN)
    if profile.digest != _digest(data):
        raise _fault(
            ("digest",),
            "does not fit the content: a value was edited",
            source=source,
            hint=_RERUN,
        )
    return profile


def load(path: Path) -> ServingProfile:
    text = yaml_strict.read(
        path, error=ProfileError, missing="Check the path, or write one with tuner sweep."
    )
    return parse(text, source=str(path))


def check_output(output: Path, *, force: bool | None) -> None:
    """Raise TargetError unless a profile may be written there: over nothing, or over an older one,
    which its own run directory still has.

    ``force`` is what the user said of writing over anything; None where nobody can.
    """
    path = files.resolve(output)
    files.check_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise TargetError(f"{path.parent}: must not be written", hint="Choose another -o.")
    old = files.content(path)
    if old is not None and not force and b"schema_version:" not in old[:4096]:
        or_else = "" if force is None else ", or overwrite it with --force"
        raise TargetError(
            f"{output}: is there already and is no serving profile",
            hint=f"Choose another -o{or_else}.",
        )


def save(profile: ServingProfile, path: Path) -> None:
    """Write the profile whole or not at all. Raises TargetError."""
    files.write_atomically(path, dump(profile).encode())


def keep(profile: ServingProfile, run_dir: Path) -> None:
    """Write the profile of a run into its folder. Raises TargetError."""
    files.write_own(run_dir / "profile.yaml", dump(profile).encode())


def _digest(content: Mapping[str, object]) -> str:
    rest = {key: value for key, value in content.items() if key != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _schema_fault(problem: ValidationError, *, source: str) -> ProfileError:
    faults = problem.errors(include_url=False)
    first = faults[0]
    path = first["loc"]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    match first["type"]:
        case "missing":
            fault, hint = "is missing", _RERUN
        case "extra_forbidden":
            fault, hint = (
                "is not in schema version 1",
                "Remove it; profiles/profile.schema.json lists every key.",
            )
        case _:
            message = first["msg"]
            fault = f"{message[0].lower()}{message[1:]}, found {_shown(first['input'])}"
            hint = _RERUN
    return _fault(path, fault + more, source=source, hint=hint)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _fault(path: tuple[str | int, ...], fault: str, *, source: str, hint: str) -> ProfileError:
    where = ".".join(map(str, path)) or "profile"
    return ProfileError(f"{source}: {where}: {fault}", hint=hint)
