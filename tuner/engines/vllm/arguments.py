"""Read engine arguments that were written as text with vLLM's own parser. Imports vLLM."""

import contextlib
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from vllm import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import OF_SERVER, command_line
from tuner.errors import InputError, TunerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.engines.vllm.flags import Setting

# mypy: allow-subclassing-any

_ENGINE = {field.name for field in dataclasses.fields(AsyncEngineArgs)} | OF_SERVER


class _Parser(FlexibleArgumentParser):
    """Parses as vLLM does. Raises ValueError where a command line would print usage and leave."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse(settings: "Sequence[Setting]") -> dict[str, ArgumentValue]:
    """Return name → value of the engine arguments among them; options of the server are dropped.

    Raises InputError or UsageError with the place of the first that vLLM would not take.
    """
    parser = _serve_parser()
    arguments: dict[str, Any] = {}
    for setting in settings:
        head, dot, key = setting.name.partition(".")
        try:
            read = vars(parser.parse_args(command_line(setting.name, setting.value)))
        except (ValueError, TypeError, SystemExit) as error:
            raise _refused(setting, str(error)) from error
        if head not in read:
            raise _refused(setting, "unrecognized arguments")
        if head not in _ENGINE:
            if setting.of_server:
                continue
            raise UsageError(
                f"--set {setting.name}: is an option of the server, not of the engine",
                hint="Leave it out: it does not change what is measured.",
            )
        if dot:
            arguments[head] = _merged(arguments.get(head), _nested(key, setting.value))
        else:  # mappings vLLM reads into classes of its own
            is_mapping = isinstance(setting.value, dict)
            arguments[head] = setting.value if is_mapping else read[head]
    return arguments


def _serve_parser() -> Any:  # noqa: ANN401 - vLLM's
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # noqa: PLC0415
    except ModuleNotFoundError:  # before vLLM 0.33
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    return make_arg_parser(_Parser())


def flags() -> dict[str, tuple[str, str]]:
    """Return the flags that the parser of the installed vLLM takes: see ``flags.FLAGS``."""
    takes = {0: "switch", None: "word", "+": "words", "?": "optional"}
    result = {}
    for flag, action in sorted(_serve_parser()._option_string_actions.items()):  # noqa: SLF001
        is_off = flag.startswith("--no-") or flag in getattr(action, "negative_option_strings", ())
        if action.dest != "help":
            result[flag] = (action.dest, "off" if is_off else takes[action.nargs])
    return result


def _refused(setting: "Setting", why: str) -> TunerError:
    head = setting.name.partition(".")[0]
    kind: type[TunerError] = InputError if setting.of_server else UsageError
    if "unrecognized arguments" in why and head not in _ENGINE:
        return kind(
            f"{setting.place}: {head} is not an argument of this vLLM",
            hint="See vllm serve --help=all.",
        )
    # without argparse's beginning, and where in memory a function lies
    reason = re.sub(r"^argument \S+: ", "", why.strip().partition("\n")[0])
    reason = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", reason)
    return kind(
        f"{setting.place}: {setting.name}: vLLM does not take {setting.value!r}: {reason}",
        hint="Write the value as vllm serve takes it on its command line.",
    )


def _merged(before: object, after: object) -> Any:  # noqa: ANN401 - as deep as they are
    """Return the union of two nested mappings; of what is in both that of ``after`` counts."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    return before | {key: _merged(before.get(key), value) for key, value in after.items()}


def _nested(key: str, value: object) -> object:
    """Return ``a.b`` and a value as ``{a: {b: value}}``; text is JSON if it can be, as in vLLM."""
    if isinstance(value, str):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
    for part in reversed(key.split(".")):
        value = {part: value}
    return value
