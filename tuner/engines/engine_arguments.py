"""Read a run's engine arguments from ``--model``, ``--base``, ``--set`` and the trace's header.

vLLM is imported only when there is a value that it must check.
"""

from collections.abc import Sequence
from pathlib import Path

from tuner.engines.arguments import ArgumentValue, Setting, canonical, typed
from tuner.engines.vllm import start as vllm
from tuner.errors import InputError, TunerError, UsageError
from tuner.system import yaml_strict

_OPTIONS = {"model": "--model", "max_num_seqs": "--ceiling"}
"""Arguments that have an option of their own."""


def engine_arguments(
    *,
    model: str | None,
    base: Path | None,
    header_model: str | None,
    overrides: Sequence[str],
) -> dict[str, ArgumentValue]:
    """Return the engine arguments, checked one by one; ``model`` is always among them.

    ``--set`` counts more than the file. Raises InputError for the file, UsageError for ``--set``,
    each with the place.
    """
    settings = _read(base)
    stated = settings.pop("model", None)
    chosen = model or (stated and str(stated.value)) or header_model
    if not chosen:
        raise InputError(
            "no model: neither --model nor --base nor the trace's header names one",
            hint="Give --model NAME, or --model tuner:tiny to try tuner without a download.",
        )
    settings |= {setting.name: setting for setting in map(_override, overrides)}
    if chosen.startswith("-"):
        raise InputError(
            f"the model {chosen!r} begins with a hyphen: vllm serve would take it for a flag",
            hint="Give the name of a model, or a path that begins with ./ or /.",
        )
    read = vllm.parse(list(settings.values()), model=chosen) if settings else {}
    return {"model": chosen, **read}


def stated_number(base: Path | None, name: str) -> int | None:
    """Return a number that the file after ``--base`` sets; None where it does not. Without vLLM.

    Raises InputError, also for what is not a whole number from 1.
    """
    setting = _read(base).get(name)
    if setting is None:
        return None
    if type(setting.value) is not int or setting.value < 1:
        raise InputError(
            f"{setting.place}: {name}: {setting.value!r} is not a whole number from 1",
            hint="Give a whole number from 1 up, as vLLM wants it.",
        )
    return setting.value


def _read(path: Path | None) -> dict[str, Setting]:
    """Return what a ``vllm serve --config`` file states, as vLLM reads it.

    ``key: false`` states nothing there, ``no-key: true`` does; an empty list states nothing.
    """
    settings = dict[str, Setting]()
    if path is None:
        return settings
    text = yaml_strict.read(path, error=InputError, missing="Check the path after --base.")
    root = yaml_strict.compose(text, source=str(path), error=InputError)
    for key, node in root.value if root is not None else ():
        value = yaml_strict.construct(node, source=str(path), error=InputError)
        if value is not False and value != []:
            place = f"{path}:{key.start_mark.line + 1}"
            setting = _setting(str(key.value), value, place, InputError)
            settings[setting.name] = setting
    return settings


def _override(text: str) -> Setting:
    key, equals, written = (part.strip() for part in text.partition("="))
    key = key.removeprefix("--")
    if not equals or not key:
        raise UsageError(f"--set {text!r} is not KEY=VALUE", hint="As in --set block_size=32.")
    switch = {"true": True, "false": False}.get(written.lower())
    value = typed(written) if switch is None else switch
    if value == written and written[:1] in {"{", "["}:
        raise UsageError(f"--set {text[:200]}: not JSON", hint="Check quotes.")
    setting = _setting(key, value, "--set", UsageError)
    if (option := _OPTIONS.get(setting.name)) is not None:
        raise UsageError(f"--set {text}: is not set so", hint=f"Use {option}.")
    return setting


def _setting(key: str, value: ArgumentValue, place: str, error: type[TunerError]) -> Setting:
    """Return the argument of a key as somebody wrote it: ``disable-x: true`` is ``enable_x``
    false."""
    if "." in key:
        raise error(
            f"{place}: {key} is one key of a mapping",
            hint="""Write the whole mapping, as in --set 'compilation_config={"mode": 0}'.""",
        )
    name, is_off = canonical(key)
    if is_off and isinstance(value, bool):
        value = not value
    return Setting(name, value, place, error)
