"""A profile's promise, as commands ask of it: its twin, and what is required of it."""

from collections.abc import Sequence
from pathlib import Path

from tuner.errors import ProfileError
from tuner.profile.numbers import FrontEndSection
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin, restored
from tuner.traffic.requirements import Requirement, parse_requirements


def twin_of(
    profile: ServingProfile, path: Path, *, cure: str, front_end: FrontEndSection | None = None
) -> StoredTwin:
    """Return the twin of a profile. Raises ProfileError, with the cure where it has none."""
    if profile.twin is None:
        raise ProfileError(
            f"{path}: twin: is null: the windows alone decided this profile", hint=cure
        )
    return restored(profile.twin, source=str(path), front_end=front_end)


def required_of(
    profile: ServingProfile, require: Sequence[str], *, headroom: float
) -> tuple[Requirement, ...]:
    """Return what ``--require`` says, or else what was required of the profile. Raises
    UsageError."""
    before = [each.text for each in profile.decision.requirements]
    return parse_requirements(require or before, headroom=headroom)
