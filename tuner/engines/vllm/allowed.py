"""Engine arguments that a profile, a trace or a run folder may set: somebody else may have made it.
Pure.

Anybody can compute a profile's digest, so what it says of the engine is a stranger's data.
``allowed.txt`` lists what changes how fast a server is, how much memory it takes, and what it
serves as data. Not listed is what loads code (``trust_remote_code``, classes, plugins, parsers),
opens files, ports or addresses, sends data, or changes who may ask: that is for the user's own
``--set``.
"""

from collections.abc import Mapping
from pathlib import Path

from tuner.engines.arguments import ArgumentValue

NAMES = frozenset(Path(__file__).with_name("allowed.txt").read_text(encoding="utf-8").split())

_ONLY: Mapping[str, tuple[ArgumentValue, ...]] = {
    "load_format": ("auto", "dummy", "safetensors"),  # read as numbers, from the model's own folder
    "tokenizer_mode": ("auto",),
    "trust_remote_code": (False,),
}
"""Argument → its only values."""

_COMPILED = frozenset(
    {
        *("cudagraph_capture_sizes", "cudagraph_num_of_warmups", "level"),
        *("max_cudagraph_capture_size", "mode", "pass_config", "use_inductor"),
    }
)
"""Keys of ``compilation_config``; others name code, or folders to write into."""


def is_allowed(name: str, value: ArgumentValue) -> bool:
    """Whether somebody else's file may set an engine argument to this.

    None leaves it to vLLM, and takes away what a deployment has: of the arguments here alone.

    >>> is_allowed("max_num_seqs", 64), is_allowed("model", "--tool-parser-plugin=evil.py")
    (True, False)
    """
    if name in _ONLY:
        return value in (None, *_ONLY[name])
    if name == "compilation_config" and isinstance(value, dict):
        rest = {**value}
        mode = rest.pop("cudagraph_mode", None)
        return rest.keys() <= _COMPILED and _is_numbers(rest) and (mode is None or _is_word(mode))
    if name not in NAMES:
        return name == "compilation_config" and value is None
    return value is None or _is_word(value) or _is_numbers(value)


def _is_word(value: object) -> bool:
    """Whether it is a text that no command line takes for a flag."""
    return isinstance(value, str) and value[:1] not in {"", "-"}


def _is_numbers(value: object) -> bool:
    """Whether it is a number, a switch, or a list or mapping of such."""
    if isinstance(value, list):
        return all(map(_is_numbers, value))
    if isinstance(value, dict):
        return all(str(key).isidentifier() for key in value) and all(
            map(_is_numbers, value.values())
        )
    return isinstance(value, bool | int | float)


def not_allowed(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the arguments that only the user may set, in order."""
    return sorted(name for name, value in arguments.items() if not is_allowed(name, value))
