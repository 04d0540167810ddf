"""How the options of a command become a command of typer, and words again."""

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any, get_args, get_origin

import typer
from msgspec import NODEFAULT, Struct, convert, structs, to_builtins
from typer.models import ParameterInfo

from tuner.errors import UsageError

DESCRIPTIONS = tomllib.loads(files("tuner.commands").joinpath("options.toml").read_text("utf-8"))
"""Panel in ``--help`` → option → its help, or with it what else typer takes."""


class Options(Struct):
    """The options of a command, whose docstring is its help. A tuple may be given several times."""


def described(options: type[Options]) -> dict[str, ParameterInfo]:
    """Return typer's description of each field."""
    command_name = re.findall("[A-Z][a-z]*", options.__name__)[0].lower()
    result: dict[str, ParameterInfo] = {}
    for name in options.__struct_fields__:
        panel, row = next(
            (panel, rows[key])
            for key in (f"{command_name}.{name}", name)
            for panel, rows in DESCRIPTIONS.items()
            if key in rows
        )
        more = {"help": row} if isinstance(row, str) else dict(row)
        flags = more.pop("flags", [f"--{name.replace('_', '-')}"])
        result[name] = info = (typer.Argument if panel == "Arguments" else typer.Option)(**more)
        info.rich_help_panel = panel
        if panel != "Arguments":
            info.param_decls = flags
    return result


def command(options: type[Options], module: str, function: str = "run") -> Callable[..., None]:
    """Return what typer makes a command of: with a parameter for each field, it calls
    ``module.function`` with an instance. The module is imported when the command runs: that keeps
    ``--help`` light."""

    def called(**given: Any) -> None:  # noqa: ANN401 - whatever the fields are
        for name, value in given.items():
            if isinstance(value, str) and not value.strip():
                flag = (infos[name].param_decls or [name])[-1]
                hint = f"Give {flag} a value (is a variable not set?), or drop it."
                raise UsageError(f"{flag} is empty", hint=hint)
        getattr(importlib.import_module(module), function)(convert(given, options))

    infos, parameters = described(options), []
    for field in structs.fields(options):
        kind, default = field.type, field.default
        if get_origin(kind) is tuple:  # which typer knows as a list
            kind, default = list[get_args(kind)[0]], default or []  # type: ignore[misc]
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is NODEFAULT else default,
                annotation=Annotated[kind, infos[field.name]],
            )
        )
    called.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(options.__doc__ or ""))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def as_typed(options: Options) -> list[str]:
    """Return the words that make these options on the command line: those that are no default."""
    words, infos = list[str](), described(type(options))
    for field in structs.fields(options):
        value, info = getattr(options, field.name), infos[field.name]
        if value is None or value == field.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        if not info.param_decls:
            words += map(str, values)
        else:
            flag = info.param_decls[-1]
            words += [flag if value is True else f"{flag}={each}" for each in values]
    return words


def in_plan(options: Options, *names: str) -> dict[str, Any]:
    """Return the options that every measurement of a run rests on, as the journal holds them."""
    values = to_builtins(options, enc_hook=str)
    return {name: values[name] for name in names}


def times(text: str | float) -> float:
    """Return a load as a multiple of the trace's. Raises ValueError.

    >>> times("1.5"), times("1.5x"), times("150%"), times("150 %")
    (1.5, 1.5, 1.5, 1.5)
    """
    written = str(text).strip().lower()
    if written.endswith("%"):
        return float(written.removesuffix("%")) / 100
    return float(written.removesuffix("x"))
