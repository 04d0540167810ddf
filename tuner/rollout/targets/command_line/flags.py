"""vLLM's flags among the words of a command line, and how they must change. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import values as vllm_values
from tuner.engines.vllm.flags import (
    LISTS,
    SHORT,
    SWITCHES,
    WHOLE_NAMES,
    WITHOUT_NEGATIVE,
    canonical,
)
from tuner.errors import TargetError
from tuner.rollout.targets.seam import Stated

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a value although it begins with a hyphen."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word that vLLM gets."""

    text: str
    place: str
    """``file:line``, for messages."""

    line: int
    known: bool = True
    splits: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, and the words that are its value."""

    argument: str
    """vLLM's name, as in ``max_num_seqs``."""

    negated: bool
    part: str
    """``mode``, of ``--compilation-config.mode``."""

    spelt: str
    inline: str | None
    """What follows the ``=``."""

    index: int
    values: tuple[int, ...]
    """Which words."""


@dataclass(frozen=True, slots=True)
class Replace:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Remove:
    index: int


@dataclass(frozen=True, slots=True)
class Append:
    texts: tuple[str, ...]
    """Words of one flag."""


Change = Replace | Remove | Append


def is_template(text: str) -> bool:
    """Whether something is put in before anybody reads it, as in ``{{ .Values.seqs }}``."""
    return "}}" in text.partition("{{")[2]


def find(tokens: Sequence[Token]) -> list[Flag]:
    """Return the flags among vLLM's words, in order."""
    found: list[Flag] = []
    at = 0
    while at < len(tokens):
        flag = _flag(tokens, at)
        if flag is not None:
            found.append(flag)
        at = 1 + (flag.values[-1] if flag and flag.values else at)
    return found


def _flag(tokens: Sequence[Token], at: int) -> Flag | None:
    text = tokens[at].text
    spelt, equals, inline = text.partition("=")
    if spelt.startswith("-O") and spelt != "-O":  # -O3
        spelt, equals, inline = "-O", "=", spelt[2:]
    name, _, part = spelt.partition(".")
    if name in SHORT:
        argument, negated = SHORT[name], False
    elif text.startswith("--") and len(text) > 2:
        argument, negated = canonical(name[2:])
    else:
        return None
    values: tuple[int, ...] = ()
    if not equals and argument not in SWITCHES:
        following = range(at + 1, len(tokens) if argument in LISTS else min(at + 2, len(tokens)))
        values = tuple(takewhile(lambda index: _is_value(tokens[index]), following))
    return Flag(argument, negated, part, spelt, inline if equals else None, at, values)


def _is_value(token: Token) -> bool:
    return not token.text.startswith("-") or _NUMBER.fullmatch(token.text) is not None


def stated(tokens: Sequence[Token]) -> dict[str, Stated]:
    """Return the arguments that the words state; the last one counts, as in argparse.

    A value that is not known here, such as a variable's, states nothing.
    """
    found: dict[str, Stated] = {}
    for flag in find(tokens):
        words = [tokens[index] for index in (flag.index, *flag.values)]
        if flag.part or not all(word.known for word in words):
            continue
        found[flag.argument] = Stated(_value(flag, tokens), tokens[flag.index].line)
    return found


def _value(flag: Flag, tokens: Sequence[Token]) -> ArgumentValue:
    if flag.argument in SWITCHES:
        return not flag.negated
    texts = [flag.inline] if flag.inline is not None else [tokens[n].text for n in flag.values]
    if flag.argument in LISTS:
        return [typed(text) for text in texts]
    return typed(texts[0]) if texts else None


def typed(text: str) -> ArgumentValue:
    """Return a word as the number, list or mapping it spells, or else as the text it is."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,15})", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text):
        return float(text)
    if text[:1] in {"{", "["}:
        try:
            value: ArgumentValue = json.loads(text)
        except ValueError:
            return text
        return value
    return text


def changes(
    tokens: Sequence[Token], arguments: Mapping[str, ArgumentValue], *, source: str
) -> Iterator[Change]:
    """Yield what must change for vLLM to get these arguments; None: the flag must not be there.

    Raises TargetError for words that vLLM would read in a way that cannot be told here.
    """
    present: dict[str, Flag] = {}
    for flag in find(tokens):
        _refuse_shortened(flag, tokens, arguments)
        if flag.argument in arguments:
            _refuse_unclear(flag, present.get(flag.argument), tokens)
            present[flag.argument] = flag
    style_is_inline = _prefers_equals(tokens)
    for argument, value in arguments.items():
        _refuse_value(argument, value, source=source)
        found = present.get(argument)
        if found is not None:
            yield from _edit(found, value, tokens)
        elif (words := _written(argument, value)) is not None:
            inline = style_is_inline and len(words) == 2 and argument not in LISTS
            yield Append(("=".join(words),) if inline or _is_risky(words) else tuple(words))


def added(
    tokens: Sequence[Token], arguments: Mapping[str, ArgumentValue], *, source: str
) -> list[tuple[str, ...]]:
    """Return the words that ``changes`` appends, flag by flag."""
    found = changes(tokens, arguments, source=source)
    return [change.texts for change in found if isinstance(change, Append)]


def _is_risky(words: Sequence[str]) -> bool:
    """A value that begins with a hyphen is one only behind an ``=``."""
    return len(words) == 2 and words[1].startswith("-")


def _prefers_equals(tokens: Sequence[Token]) -> bool:
    flags = [flag for flag in find(tokens) if flag.inline is not None or flag.values]
    inline = sum(flag.inline is not None for flag in flags)
    return 2 * inline >= len(flags)


def _edit(flag: Flag, value: ArgumentValue, tokens: Sequence[Token]) -> Iterator[Change]:
    words = _written(flag.argument, value)
    if words is None:
        yield from (Remove(index) for index in (flag.index, *flag.values))
    elif isinstance(value, bool):
        right = flag.negated is not value and flag.inline is None
        if not right:
            yield Replace(flag.index, _like(flag.spelt, words[0]))
    elif isinstance(value, list):
        if not vllm_values.same(_value(flag, tokens), value):
            yield from (Remove(index) for index in (flag.index, *flag.values))
            yield Append(tuple(words))
    elif not vllm_values.same(comparable(_value(flag, tokens), value), value):
        if flag.values and not words[1].startswith("-"):
            yield Replace(flag.values[0], words[1])
        else:
            yield Replace(flag.index, f"{flag.spelt}={words[1]}")
            yield from (Remove(index) for index in flag.values)


def comparable(found: ArgumentValue, wanted: ArgumentValue) -> ArgumentValue:
    """A text is a text, whatever else it spells; and 1 is 1.0 where a fraction is asked for."""
    if isinstance(wanted, str) and isinstance(found, int | float):
        return str(found)
    if isinstance(wanted, str) and isinstance(found, list | dict):
        return wanted if typed(wanted) == found else json.dumps(found)
    if isinstance(wanted, float) and isinstance(found, int):
        return float(found)
    return found


def is_written(argument: str, value: ArgumentValue) -> bool:
    """Whether a flag says this; what is left to vLLM has none."""
    return _written(argument, value) is not None


def _like(spelt: str, flag: str) -> str:
    """Return the flag with the underscores of the one it replaces."""
    return "--" + flag[2:].replace("-", "_") if "_" in spelt else flag


def _written(argument: str, value: ArgumentValue) -> list[str] | None:
    """Return the words that vLLM reads as ``value``; None for leaving it to vLLM."""
    flag = f"--{argument.replace('_', '-')}"
    if value is None or (value is False and argument in WITHOUT_NEGATIVE):
        return None
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    if isinstance(value, dict):
        return [flag, json.dumps(value, separators=(",", ":"))]
    return [flag, str(value)]


def _refuse_value(argument: str, value: ArgumentValue, *, source: str) -> None:
    items = value if isinstance(value, list) else []
    odd = any(item is None or isinstance(item, bool | list | dict) for item in items)
    hidden = any(isinstance(item, str) and item.startswith("-") for item in items)
    if odd or hidden or value == [] or (items and argument not in LISTS):
        raise TargetError(
            f"{source}: {argument}: a command line cannot carry {value!r}",
            hint=f"Leave {argument} to vLLM's default.",
        )
    if isinstance(value, str) and "\0" in value:
        raise TargetError(f"{source}: {argument}: has a NUL in it", hint="Correct the profile.")


def _refuse_shortened(
    flag: Flag, tokens: Sequence[Token], arguments: Mapping[str, ArgumentValue]
) -> None:
    if flag.argument in WHOLE_NAMES or flag.argument in arguments or flag.spelt in SHORT:
        return
    for argument in arguments:
        if argument.startswith(flag.argument) and not flag.argument.endswith("_"):
            raise TargetError(
                f"{tokens[flag.index].place}: {flag.spelt} may be short for {argument}",
                hint="Write the flag's whole name.",
            )


def _refuse_unclear(flag: Flag, first: Flag | None, tokens: Sequence[Token]) -> None:
    place = tokens[flag.index].place
    if first is not None:
        raise TargetError(
            f"{place}: {flag.spelt} states {flag.argument} a second time, "
            f"after line {tokens[first.index].line}",
            hint="Remove one of the two.",
        )
    if flag.part:
        raise TargetError(
            f"{place}: {flag.spelt} states a part of {flag.argument}",
            hint=f"Write {flag.argument} as one JSON value, or remove its parts.",
        )
    words = [tokens[index] for index in (flag.index, *flag.values)]
    if not all(word.known for word in words):
        raise TargetError(
            f"{place}: {flag.argument} is decided elsewhere: {words[-1].text}",
            hint="Write the value there, or apply the profile to where it comes from.",
        )
    if flag.argument not in SWITCHES and flag.inline is None and not flag.values:
        raise TargetError(f"{place}: {flag.spelt} has no value", hint="Give it one, or remove it.")
