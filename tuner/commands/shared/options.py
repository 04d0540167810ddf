"""Options: a frozen dataclass for each command, and those that several commands share."""

import dataclasses
import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from tuner.engines.vllm import installed
from tuner.errors import UsageError

IN_PLAN = "measurements rest on it"
"""Marks a field of a command's options that the plan in the journal holds; see ``in_plan``."""


def _allow_any_vllm(asked: bool) -> None:
    if asked:
        os.environ[installed.ANY] = "1"


AnyVllm = Annotated[
    bool,
    typer.Option(
        "--any-vllm",
        callback=_allow_any_vllm,
        help="Go on with a vLLM that lacks what tuner needs.",
    ),
]
Base = Annotated[
    Path | None, typer.Option(help="The `vllm serve --config` YAML that production uses.")
]
Budget = Annotated[str, typer.Option(help="Engine time to spend, starts included."), IN_PLAN]
Engine = Annotated[str, typer.Option(help="vllm, or sim with --world."), IN_PLAN]
Headroom = Annotated[
    float,
    typer.Option(min=1.0, max=10.0, help="Load of the validation, times the trace's."),
    IN_PLAN,
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    tuple[str, ...],
    typer.Option("--set", metavar="KEY=VALUE", help="Any vLLM engine argument; repeatable."),
]
Replicas = Annotated[
    int,
    typer.Option(min=1, help="Servers that shared the trace; one server's part is sent."),
    IN_PLAN,
]
Resume = Annotated[bool, typer.Option(help="Go on with an interrupted run.")]
Router = Annotated[
    Literal["least", "rr", "random", "session"],
    typer.Option(help="How requests reach replicas."),
    IN_PLAN,
]
RunDir = Annotated[
    Path | None, typer.Option(help="Where measurements are kept; default: runs/TRACE-TIME.")
]
World = Annotated[
    Path | None, typer.Option(help="World file: the machine that --engine sim simulates.")
]
Window = Annotated[
    str,
    typer.Option(help="Part of the trace: all, busiest or START+LEN (120s+60s)."),
    IN_PLAN,
]


def command(options: type[Any], module: str, function: str = "run") -> Callable[..., None]:
    """Return what typer makes a command of: it has a parameter for each field of the dataclass
    ``options``, whose docstring is its help, and calls ``module.function`` with an instance.

    A field is ``Annotated`` with its ``typer.Option`` or ``typer.Argument``; without a default it
    must be given. A field that is a tuple may be given several times. The module is imported when
    the command runs, which keeps ``--help`` light.
    """
    annotations = get_type_hints(options, include_extras=True)
    defaults = {one.name: one.default for one in dataclasses.fields(options)}

    def called(**given: Any) -> None:  # noqa: ANN401 - whatever the fields are
        values = {
            name: tuple(value or ()) if _is_tuple(annotations[name]) else value
            for name, value in given.items()
        }
        getattr(importlib.import_module(module), function)(options(**values))

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(defaults[name]),
            annotation=_as_list(hint, is_required=defaults[name] is dataclasses.MISSING),
        )
        for name, hint in annotations.items()
    ]
    called.__doc__ = options.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _is_tuple(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    return get_origin(get_args(hint)[0]) is tuple


def _default(default: object) -> object:
    if default is dataclasses.MISSING:
        return inspect.Parameter.empty
    return None if default == () else default


def _as_list(hint: Any, *, is_required: bool) -> Any:  # noqa: ANN401 - annotations
    """Return the annotation as typer knows it: of several values it makes a list."""
    if not _is_tuple(hint):
        return hint
    several, *rest = get_args(hint)
    each: Any = GenericAlias(list, get_args(several)[:1])
    return Annotated[each if is_required else each | None, *rest]


def in_plan(options: Any) -> dict[str, Any]:  # noqa: ANN401 - any command's
    """Return the options that every measurement of a run rests on, by name: its fields that are
    marked with ``IN_PLAN``."""
    hints = get_type_hints(type(options), include_extras=True)
    return {
        name: getattr(options, name) for name, hint in hints.items() if IN_PLAN in get_args(hint)
    }


def check_given(option: str, value: str | None) -> None:
    """Raise UsageError for a value that is there and empty: the variable that it was to come from
    is not set, and to go on without it would be something else than what was asked."""
    if value is not None and not value.strip():
        raise UsageError(
            f"{option} is empty",
            hint=f"Give {option} a value (is a variable not set?), or drop it.",
        )
