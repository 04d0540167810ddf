"""Refuses engine arguments that a stranger's profile may set only if the user asks for the same."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.engines.arguments import not_allowed, same
from tuner.engines.engine_arguments import engine_arguments
from tuner.errors import ProfileError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.system.printable import printable

MOST_SHOWN = 60
"""Characters of a value that somebody else wrote."""


def check_confirmed(profile: ServingProfile, overrides: tuple[str, ...], *, source: Path) -> None:
    """Refuse what a profile sets and only the user may, unless --set says the same.

    Raises ProfileError for that, and UsageError for a --set that says something else.
    """
    model, wanted = profile.model, {}
    if overrides:
        wanted = engine_arguments(model=model, base=None, header_model=None, overrides=overrides)
    for name, value in wanted.items():
        if name != "model" and not _has(profile.engine, name, value):
            has = _shown(profile.engine[name]) if name in profile.engine else "nothing"
            raise UsageError(
                f"--set {name}={_shown(value)}: the profile has {has}, and is taken as it is",
                hint="Leave it out, or sweep with it for a profile of its own.",
            )
    check_arguments(profile, wanted, source=source)


def check_arguments(profile: ServingProfile, confirmed: Mapping[str, Any], *, source: Path) -> None:
    """Refuse what a profile sets and only the user may, unless it is ``confirmed``.

    Raises ProfileError.
    """
    engine: Mapping[str, Any] = profile.engine
    refused = {n: engine[n] for n in not_allowed(engine) if not _has(confirmed, n, engine[n])}
    if not refused:
        return
    words = [f"{name}={_shown(value)}" for name, value in refused.items()]
    same_words = " ".join(f"--set {shlex.quote(each)}" for each in words)  # to be pasted
    if any(_shown(value) != _text(value) for value in refused.values()):
        same_words = "--set NAME=VALUE for each, with the value in full"
    raise ProfileError(
        f"{source}: engine: {', '.join(words)}: may load code, open files or addresses, or "
        "send data, and whoever made the profile wrote it",
        hint=f"If you trust it, ask for the same: {same_words}",
    )


def _has(arguments: Mapping[str, Any], name: str, value: object) -> bool:
    return name in arguments and same(arguments[name], value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: object) -> str:
    text = printable(_text(value))
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
