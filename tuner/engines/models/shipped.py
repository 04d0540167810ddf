"""Models that ship with the package: a config.json and a tokenizer, no weights."""

from collections.abc import Mapping
from pathlib import Path

from tuner.engines import provenance
from tuner.engines.arguments import ArgumentValue
from tuner.errors import InputError

_PREFIX = "tuner:"

_NEEDED: dict[str, ArgumentValue] = {"load_format": "dummy"}
"""The shipped models have no weights."""

_NEEDED_ON_CPU: dict[str, ArgumentValue] = {
    "dtype": "float32",  # bfloat16 is emulated on many CPUs
    "enforce_eager": True,  # compiling would take longer than all the rest
    "kv_cache_memory_bytes": 256 * 2**20,  # zeroed while starting
}


def is_shipped(name: str) -> bool:
    return name.startswith(_PREFIX)


def shipped_models() -> tuple[str, ...]:
    configs = Path(__file__).parent.glob("*/config.json")
    return tuple(sorted(_PREFIX + config.parent.name for config in configs))


def model_path(name: str) -> str:
    """Return what vLLM calls the model: a folder for ``tuner:…``, any other name as it is.

    Raises InputError for a ``tuner:…`` that does not ship.
    """
    if not is_shipped(name):
        return name
    shipped = shipped_models()
    if name not in shipped:
        raise InputError(
            f"the model {name} does not ship with tuner", hint=f"Shipped: {', '.join(shipped)}."
        )
    return str(Path(__file__).parent / name.removeprefix(_PREFIX))


def with_defaults(arguments: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Return engine arguments with what a shipped model needs, where nothing else was asked for."""
    if not is_shipped(str(arguments["model"])):
        return dict(arguments)
    return {**_NEEDED, **(_NEEDED_ON_CPU if provenance.is_cpu_build() else {}), **arguments}
