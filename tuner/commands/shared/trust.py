"""Refuses engine arguments that a stranger's profile may set only if the user asks for the same."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.allowed import not_allowed
from tuner.engines.vllm.values import same
from tuner.errors import ProfileError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.system.printable import printable

MOST_SHOWN = 60
"""Characters of a value that somebody else wrote."""


def check_asked(profile: ServingProfile, overrides: tuple[str, ...], *, source: Path) -> None:
    """Refuse what a profile sets and only the user may, unless --set says the same.

    Raises ProfileError for that, and UsageError for a --set that says something else.
    """
    wanted: Mapping[str, ArgumentValue] = {}
    if overrides:
        wanted = engine_arguments(
            model=profile.model, base=None, header_model=None, overrides=overrides
        )
    for name, value in wanted.items():
        if name != "model" and not _has(profile.engine, name, value):
            has = _shown(profile.engine[name]) if name in profile.engine else "nothing"
            raise UsageError(
                f"--set {name}={_shown(value)}: the profile has {has}, and is taken as it is",
                hint="Leave it out, or sweep with it for a profile of its own.",
            )
    check_arguments(profile, wanted, source=source)


def check_arguments(
    profile: ServingProfile, asked: Mapping[str, ArgumentValue], *, source: Path
) -> None:
    """Refuse what a profile sets and only the user may, unless it was ``asked`` for.

    Raises ProfileError.
    """
    engine = cast("Mapping[str, Any]", profile.engine)
    result = [name for name in not_allowed(engine) if not _has(asked, name, engine[name])]
    if result:
        words = [f"{name}={_shown(engine[name])}" for name in result]
        same_words = " ".join(f"--set {shlex.quote(each)}" for each in words)  # to be pasted
        if any(_shown(engine[name]) != _text(engine[name]) for name in result):
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
