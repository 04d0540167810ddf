"""Options: a frozen dataclass for each command becomes what typer makes a command of."""

import dataclasses
import gc
import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, ParameterInfo

from tuner.errors import UsageError


def option(help_: str, *names: str, panel: str | None = None, **more: Any) -> Any:  # noqa: ANN401
    """Return a typer option; ``panel`` groups it in ``--help``."""
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


Json = Annotated[bool, option("Print one JSON document.", "--json", panel="Output")]


Router = Annotated[
    Literal["least", "rr", "random", "session"],
    option("How requests reach replicas.", panel="Traffic"),
]


def times(text: str | float) -> float:
    """Return a load as a multiple of the trace's. Raises ValueError.

    >>> times("1.5"), times("1.5x"), times("150%"), times("150 %")
    (1.5, 1.5, 1.5, 1.5)
    """
    written = str(text).strip().lower()
    if written.endswith("%"):
        return float(written.removesuffix("%")) / 100
    return float(written.removesuffix("x"))


def headroom(text: str | float) -> float:
    """Return a validation's load, from 1 to 10 times the recorded. Raises typer.BadParameter."""
    with suppress(ValueError):
        if 1.0 <= (value := times(text)) <= 10.0:
            return value
    raise typer.BadParameter(f"{text!r} is not from 1 to 10: give 1.25, 1.25x or 125%")


def command(options: type[Any], module: str, function: str = "run") -> Callable[..., None]:
    """Return what typer makes a command of.

    It has a parameter for each field of the dataclass ``options``, whose docstring is its help, and
    calls ``module.function`` with an instance. A field is ``Annotated`` with its ``typer.Option``
    or ``typer.Argument``; without a default it must be given. A field that is a tuple may be given
    several times. The module is imported when the command runs, and the dataclass has no ``repr``
    and no ``==``: both keep ``--help`` light.
    """
    annotations = get_type_hints(options, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(options)}

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
    paragraphs = inspect.cleandoc(options.__doc__ or "").split("\n\n")
    called.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _is_tuple(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    return get_origin(get_args(hint)[0]) is tuple


def _default(default: object) -> object:
    if default is dataclasses.MISSING:
        return inspect.Parameter.empty
    return None if default == () else default


def _as_list(hint: Any, *, is_required: bool) -> Any:  # noqa: ANN401 - annotations
    """Return the annotation as typer knows it: several values are a list."""
    if not _is_tuple(hint):
        return hint
    several, *rest = get_args(hint)
    each: Any = GenericAlias(list, get_args(several)[:1])
    return Annotated[each if is_required else each | None, *rest]


def in_plan(options: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401 - any command's
    """Return the options that every measurement of a run rests on, as the journal holds them."""
    values = {name: getattr(options, name) for name in names}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def as_typed(options: Any) -> list[str]:  # noqa: ANN401 - any command's
    """Return the words that make these options on the command line: those that are no default."""
    hints = get_type_hints(type(options), include_extras=True)
    words: list[str] = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None or value == field.default:
            continue
        info = next(each for each in get_args(hints[field.name]) if isinstance(each, ParameterInfo))
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(info, ArgumentInfo):
            words += map(str, values)
            continue
        stated = [info.default, *(info.param_decls or ()), f"--{field.name.replace('_', '-')}"]
        name = next(each for each in stated if isinstance(each, str) and each.startswith("--"))
        words += [name if value is True else f"{name}={each}" for each in values]
    return words


def check_given(name: str, value: str | None) -> None:
    """Raise UsageError for a value that is there and empty: the variable that it was to come from
    is not set."""
    if value is not None and not value.strip():
        raise UsageError(
            f"{name} is empty", hint=f"Give {name} a value (is a variable not set?), or drop it."
        )
