"""Models that ship with the package: a config.json and a tokenizer, no weights."""

from pathlib import Path

from tuner.errors import InputError

_PREFIX = "tuner:"


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
