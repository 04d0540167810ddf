"""The approaches of ``tuner compare``: one module each, and this registry.

An approach is a module with ``APPROACH``. To add one, write its file and name it here, where it
belongs in the story.
"""

from collections.abc import Sequence

from tuner.engines.workers.seam import Approach
from tuner.errors import UsageError
from tuner.runs.compare.approaches import (
    full_profile,
    one_worker,
    static_batching,
    tuned,
    two_workers,
    untuned,
)

APPROACHES: tuple[Approach, ...] = (
    one_worker.APPROACH,
    two_workers.APPROACH,
    static_batching.APPROACH,
    untuned.APPROACH,
    tuned.APPROACH,
    full_profile.APPROACH,
)


def chosen(names: str | None, *, has_profile: bool) -> tuple[Approach, ...]:
    """Return the approaches of a list such as ``worker,tuned``, in the order of the story.

    None is all that there can be. Raises UsageError for a name that is unknown or there twice.
    """
    if names is None:
        return tuple(one for one in APPROACHES if has_profile or one is not full_profile.APPROACH)
    known = {one.name: one for one in APPROACHES}
    asked = [name.strip() for name in names.split(",")]
    _check(asked, list(known), option="--approaches")
    if full_profile.APPROACH.name in asked and not has_profile:
        raise UsageError(
            "--approaches profile: there is no profile", hint="Give --profile, or leave it out."
        )
    return tuple(one for name, one in known.items() if name in asked)


def _check(asked: Sequence[str], known: Sequence[str], *, option: str) -> None:
    for name in asked:
        if name not in known:
            raise UsageError(
                f"{option}: {name!r} is not known", hint=f"Choose of {', '.join(known)}."
            )
    if len(set(asked)) < len(asked):
        raise UsageError(f"{option}: a name is there twice", hint="Give each once.")
