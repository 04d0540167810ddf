"""The command to run next, which works when it is typed."""

import shlex
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tuner.commands.shared.options import as_typed
from tuner.errors import GateError
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import LOW, promised
from tuner.system.passwords import public_words

OPEN = ("inconclusive", "not_reached")
"""Verdicts after which more is to be measured before anything is rolled out."""


def after(profile: ServingProfile, path: Path, *, base: Path | None = None) -> str:
    """Return what to do with a profile that was just written to ``path``.

    Of a simulated engine there is nothing to roll out, and of what is not decided nothing yet.
    Where too few requests meet the SLO, more servers are the cure, and not another cap. ``base`` is
    the file that production uses.
    """
    if profile.provenance.engine == "sim" or (
        not is_short(profile) and profile.decision.verdict in OPEN
    ):
        return command("show", path, "-o", "page.html")
    if is_short(profile):
        return command("show" if profile.evidence is None else "plan", path)
    return command("apply", path, *([] if base is None else [base]), "--dry-run")


def is_short(profile: ServingProfile) -> bool:
    """Whether too few requests meet the SLO for a rollout, or the choice breaks what is
    required."""
    decision = profile.decision
    return (
        decision.verdict == "overloaded"
        or promised(profile).attainment < LOW
        or bool(decision.broken)
    )


def check_required(
    profile: ServingProfile, path: Path, *, cure: str, next_: str | None = None
) -> None:
    """Raise GateError where the choice breaks what is required of it; ``cure`` says what would keep
    it, where that is known."""
    if broken := profile.decision.broken:
        raise GateError(
            f"{path}: max_num_seqs {profile.decision.max_num_seqs} does not keep "
            f"{', '.join(map(str, broken))}" + (f"; {cure}" if cure else ""),
            hint=f"Add replicas or require less. Next: {next_ or after(profile, path)}",
        )


def again(name: str, options: Any, **changes: Any) -> str:  # noqa: ANN401 - any command's
    """Return the command with these options, but for the changes, without secrets."""
    return command(name, *public_words(as_typed(replace(options, **changes))))


def command(*words: object) -> str:
    """Return a command of tuner as a shell takes it."""
    return shlex.join(["tuner", *map(str, words)])
