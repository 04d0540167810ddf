"""Read engine arguments that were written as text with vLLM's own parser. Imports vLLM."""

import contextlib
import dataclasses
import difflib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from vllm import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import OF_SERVER, Grammar, command_line
from tuner.errors import InputError, TunerError, UsageError

if TYPE_CHECKING:
    from tuner.engines.vllm.flags import Setting

# mypy: allow-subclassing-any


class _Parser(FlexibleArgumentParser):
    """Parses as vLLM does. Raises ValueError where a command line would print usage and leave."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse(settings: "Sequence[Setting]") -> dict[str, ArgumentValue]:
    """Return name → value of the engine arguments among them; options of the server are dropped.

    Raises InputError or UsageError with the place of the first that vLLM would not take.
    """
    parser = _serve_parser()
    engine = {field.name for field in dataclasses.fields(AsyncEngineArgs)} | OF_SERVER
    arguments: dict[str, ArgumentValue] = {}
    for setting in settings:
        head, dot, key = setting.name.partition(".")
        try:
            read = vars(parser.parse_args(command_line(setting.name, setting.value)))
        except (ValueError, TypeError, SystemExit) as error:
            raise _refused(setting, str(error), sorted(engine)) from error
        if head not in read:
            raise _refused(setting, "unrecognized arguments", sorted(engine))
        if head not in engine:
            if setting.of_server:
                continue
            raise UsageError(
                f"--set {setting.name}: is an option of the server, not of the engine",
                hint="Leave it out: it does not change what is measured.",
            )
        if dot:
            arguments[head] = _merged(arguments.get(head), _nested(key, setting.value))
        elif isinstance(setting.value, dict):
            arguments[head] = setting.value  # vLLM reads it into classes of its own
        else:
            arguments[head] = read[head]
    return arguments


def _serve_parser() -> Any:  # noqa: ANN401 - vLLM's
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # noqa: PLC0415
    except ModuleNotFoundError:  # before vLLM 0.33
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    return make_arg_parser(_Parser())


def grammar() -> Grammar:
    """Return what the parser of the installed vLLM takes. Raises EngineError where it has none."""
    switches: dict[str, list[str]] = {}
    takes: dict[object, list[str]] = {None: [], "+": [], "?": []}
    also: dict[str, str] = {}
    for flag, action in sorted(_serve_parser()._option_string_actions.items()):  # noqa: SLF001
        name = action.dest
        if name == "help":
            continue
        if action.nargs == 0:
            off = switches.setdefault(name, [])
            if flag in getattr(action, "negative_option_strings", ()) or flag.startswith("--no-"):
                off.append(flag)
                continue
        elif name not in takes[action.nargs]:
            takes[action.nargs].append(name)
        if flag != f"--{name.replace('_', '-')}":
            also[flag] = name
    return Grammar(switches, words=takes[None], lists=takes["+"], optional=takes["?"], also=also)


def _refused(setting: "Setting", why: str, known: Sequence[str]) -> TunerError:
    head = setting.name.partition(".")[0]
    kind: type[TunerError] = InputError if setting.of_server else UsageError
    if "unrecognized arguments" in why and head not in known:
        close = difflib.get_close_matches(head, known, n=1)
        return kind(
            f"{setting.place}: {head} is not an argument of this vLLM",
            hint=f"Did you mean {close[0]}?" if close else "See vllm serve --help=all.",
        )
    return kind(
        f"{setting.place}: {setting.name}: vLLM does not take {setting.value!r}: {_short(why)}",
        hint="Write the value as vllm serve takes it on its command line.",
    )


def _short(why: str) -> str:
    """Drop what argparse puts before its reason, where a function lies in memory, and all lines but
    the first."""
    reason = re.sub(r"^argument \S+: ", "", why.strip().partition("\n")[0])
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", reason)


def _merged(one: object, other: object) -> Any:  # noqa: ANN401 - as deep as they are
    """Return the union of two nested mappings; of what is in both the other's counts."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    return one | {key: _merged(one.get(key), value) for key, value in other.items()}


def _nested(key: str, value: ArgumentValue) -> dict[str, object]:
    """Return ``a.b`` and a value as ``{a: {b: value}}``; text is JSON if it can be, as in vLLM."""
    nested: object = value
    if isinstance(value, str):
        with contextlib.suppress(json.JSONDecodeError):
            nested = json.loads(value)
    for part in reversed(key.split(".")):
        nested = {part: nested}
    assert isinstance(nested, dict)
    return nested
