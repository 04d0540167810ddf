"""What to run next: a command that works when it is typed."""

import shlex
from pathlib import Path

from tuner.profile.schema import ServingProfile
from tuner.profile.summary import LOW, promised


def after(profile: ServingProfile, path: Path, *, base: Path | None = None) -> str:
    """Return what to do with a profile that was just written to ``path``.

    Of a simulated engine there is nothing to roll out. Where too few requests are served in time,
    more servers are the cure, and not another cap. ``base`` is the file that production uses.
    """
    if profile.provenance.engine == "sim":
        return command("show", path)
    if is_short(profile):
        return command("plan", path) if profile.twin is not None else command("show", path)
    return command("apply", path, *([] if base is None else [base]), "--dry-run")


def is_short(profile: ServingProfile) -> bool:
    """Whether the choice serves too few requests in time to be rolled out."""
    return profile.decision.verdict == "overloaded" or promised(profile).attainment < LOW


def command(*words: object) -> str:
    """Return a command of tuner as a shell takes it."""
    return shlex.join(["tuner", *map(str, words)])
