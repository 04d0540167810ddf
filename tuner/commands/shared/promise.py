"""What a profile requires, as commands ask of it."""

from collections.abc import Sequence

from tuner.profile.profile import ServingProfile
from tuner.traffic.requirements import Requirement, parse_requirements


def required_of(
    profile: ServingProfile, require: Sequence[str], *, headroom: float
) -> tuple[Requirement, ...]:
    """Return what ``--require`` says, or else what was required of the profile. Raises
    UsageError."""
    before = [each.text for each in profile.decision.requirements]
    return parse_requirements(require or before, headroom=headroom)
