"""Options: a frozen dataclass for each command, and those that several commands share."""

import dataclasses
import gc
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, ParameterInfo

from tuner.errors import UsageError

IN_PLAN = "measurements rest on it"
"""Marks a field of a command's options that the plan in the journal holds; see ``in_plan``."""


Confirmed = Annotated[
    tuple[str, ...],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An argument of the profile that it may not set by itself; repeatable.",
    ),
]
SamplingText = Annotated[
    str | None,
    typer.Option(
        "--sampling",
        metavar="temperature=0.7,top_p=0.9",
        help="How production draws tokens; default: the model's generation configuration.",
    ),
    IN_PLAN,
]
ConfirmedBase = Annotated[
    Path | None, typer.Option("--base", help="A `vllm serve --config` YAML that says the same.")
]
Base = Annotated[
    Path | None, typer.Option(help="The `vllm serve --config` YAML that production uses.")
]
Budget = Annotated[str, typer.Option(help="Engine time to spend, starts included."), IN_PLAN]
Engine = Annotated[str, typer.Option(help="vllm, or sim with --world."), IN_PLAN]
ServedEngine = Annotated[
    str,
    typer.Option(help="vllm, serve (the same behind vllm serve), or sim with --world."),
    IN_PLAN,
]


def times(text: str | float) -> float:
    """Return a load as a multiple of the trace's. Raises typer.BadParameter.

    >>> times("1.5"), times("1.5x"), times("150%"), times("150 %")
    (1.5, 1.5, 1.5, 1.5)
    """
    written = str(text).strip().lower()
    number, divisor = written.removesuffix("x"), 1.0
    if written.endswith("%"):
        number, divisor = written.removesuffix("%"), 100.0
    try:
        return float(number) / divisor
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no load: give 1.5, 1.5x or 150%, which all mean the same"
        ) from None


def headroom(text: str | float) -> float:
    """Return a validation's load, from 1 to 10 times the captured. Raises typer.BadParameter."""
    value = times(text)
    if not 1.0 <= value <= 10.0:
        raise typer.BadParameter(f"{text!r} is not from 1 to 10 (100% to 1000%)")
    return value


Headroom = Annotated[
    float,
    typer.Option(
        parser=headroom,
        metavar="TIMES",
        help="Load of the validation, times the trace's: 1.25, 1.25x or 125%.",
    ),
    IN_PLAN,
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    tuple[str, ...],
    typer.Option("--set", metavar="KEY=VALUE", help="Any vLLM engine argument; repeatable."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Start nothing: say what would be run, and in what memory."),
]
Details = Annotated[bool, typer.Option("--details", help="Print all that was found.")]
Require = Annotated[
    tuple[str, ...],
    typer.Option(
        "--require",
        metavar="BOUND",
        help="What must hold: 'p99 ttft <= 500ms', 'attainment >= 99% at headroom', "
        "'preemptions == 0'; repeatable.",
    ),
    IN_PLAN,
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
    """Return what typer makes a command of.

    It has a parameter for each field of the dataclass ``options``, whose docstring is its help, and
    calls ``module.function`` with an instance. A field is ``Annotated`` with its ``typer.Option``
    or ``typer.Argument``; without a default it must be given. A field that is a tuple may be given
    several times. The module is imported when the command runs, and the dataclass has no
    ``repr`` and no ``==``: both keep ``--help`` light.
    """
    annotations = get_type_hints(options, include_extras=True)
    defaults = {one.name: one.default for one in dataclasses.fields(options)}

    def called(**given: Any) -> None:  # noqa: ANN401 - whatever the fields are
        values = {
            name: tuple(value or ()) if _is_tuple(annotations[name]) else value
            for name, value in given.items()
        }
        try:
            run = getattr(importlib.import_module(module), function)
            gc.enable()  # which cli.py disables for the imports
            run(options(**values))
        except EOFError as error:  # for typer that is Ctrl-D at a prompt, and there is none
            raise ValueError(str(error)).with_traceback(error.__traceback__) from error

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


def as_typed(options: Any) -> list[str]:  # noqa: ANN401 - any command's
    """Return the words that make these options on the command line: those that are no default."""
    hints = get_type_hints(type(options), include_extras=True)
    words: list[str] = []
    for one in dataclasses.fields(options):
        value = getattr(options, one.name)
        if value is None or value == one.default:
            continue
        info = next(each for each in get_args(hints[one.name]) if isinstance(each, ParameterInfo))
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(info, ArgumentInfo):
            words += map(str, values)
            continue
        name = _option(one.name, info)
        words += [name if value is True else f"{name}={each}" for each in values]
    return words


def _option(field: str, info: ParameterInfo) -> str:
    """Return the long name of an option."""
    stated = [info.default, *(info.param_decls or ())]
    long = [name for name in stated if isinstance(name, str) and name.startswith("--")]
    return long[0] if long else f"--{field.replace('_', '-')}"


def check_given(option: str, value: str | None) -> None:
    """Raise UsageError for a value that is there and empty.

    The variable that it was to come from is not set: to go on without it would be something else
    than what was asked.
    """
    if value is not None and not value.strip():
        raise UsageError(
            f"{option} is empty",
            hint=f"Give {option} a value (is a variable not set?), or drop it.",
        )
