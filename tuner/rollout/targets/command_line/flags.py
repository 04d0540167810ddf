"""vLLM's flags among the words of a command line, and how they must change. Pure."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import values as vllm_values
from tuner.engines.vllm.flags import (
    LISTS,
    SHORT,
    SWITCHES,
    WITHOUT_NEGATIVE,
    canonical,
)
from tuner.errors import TargetError
from tuner.rollout.targets.command_line.names import KNOWN, OLDER_SWITCHES
from tuner.rollout.targets.command_line.variables import Variable, value_of
from tuner.rollout.targets.command_line.words import Piece
from tuner.rollout.targets.seam import Arguments, Stated

_BOOLEANS = {"false": False, "true": True}
"""Words that older versions took behind a switch; newer ones refuse them."""

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""Words that argparse takes for a value although they begin with a hyphen."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word that vLLM gets."""

    text: str
    """As it is spelt, where something is put in for a part of it."""

    place: str
    """``file:line``, for messages."""

    line: int
    known: bool = True
    """Nothing is put in for a part of it."""

    splits: bool = False
    """What is put in may be several words, or none."""

    value: str | None = None
    """What vLLM gets, where the text alone does not tell it and something else does."""

    variable: Variable | None = None
    """The one variable that the word is, or that stands behind its ``=``, as it is set."""

    @property
    def got(self) -> str | None:
        """The text that vLLM gets; None where that is not known here."""
        return self.text if self.known else self.value


def token_of(
    pieces: Sequence[Piece],
    place: str,
    line: int,
    setting: Callable[[Piece], Variable | None],
    *,
    splits: bool = False,
) -> Token:
    """Return the word that the pieces make; ``setting`` says how what is put in for one is set."""
    text = "".join(one.text for one in pieces)
    if all(one.is_literal for one in pieces):
        return Token(text, place, line, splits=splits)
    head, last = "".join(one.text for one in pieces[:-1]), pieces[-1]
    alone = not last.is_literal and (not head or re.fullmatch(r"--[\w.-]+=", head))
    return Token(
        text,
        place,
        line,
        known=False,
        splits=splits,
        value=value_of(pieces, setting),
        variable=setting(last) if alone else None,
    )


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


@dataclass(frozen=True, slots=True)
class Change:
    """Another value of the variable that is put in for a word."""

    index: int
    text: str


Edit = Replace | Remove | Append | Change


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
    if not equals and argument in SWITCHES | OLDER_SWITCHES:
        is_said = at + 1 < len(tokens) and (tokens[at + 1].got or "").lower() in _BOOLEANS
        values = (at + 1,) if is_said else ()
    elif not equals:
        following = range(at + 1, len(tokens) if argument in LISTS else min(at + 2, len(tokens)))
        values = tuple(takewhile(lambda index: _is_value(tokens[index]), following))
    return Flag(argument, negated, part, spelt, inline if equals else None, at, values)


def _is_value(token: Token) -> bool:
    return not token.text.startswith("-") or _NUMBER.fullmatch(token.text) is not None


def stated(tokens: Sequence[Token]) -> dict[str, Stated]:
    """Return the arguments that the words state; the last one counts, as in argparse."""
    found: dict[str, Stated] = {}
    for flag in find(tokens):
        if not flag.part:
            line = tokens[flag.index].line
            found[flag.argument] = Stated(_value(flag, tokens), line, _why_unknown(flag, tokens))
    return found


def model(tokens: Sequence[Token], *, but: Collection[int] = ()) -> int | None:
    """Return which word is the model, given without a flag. Raises TargetError for two of them.

    ``but``: words that are none, such as variables of flags.
    """
    taken = {index for flag in find(tokens) for index in (flag.index, *flag.values)} | {*but}
    last = next((n for n, one in enumerate(tokens) if one.text == "--"), len(tokens))
    free = [n for n, one in enumerate(tokens[:last]) if n not in taken and one.text[:1] != "-"]
    free = [n for n in free if n == free[0] or not tokens[n].splits]
    if len(free) > 1:
        raise TargetError(
            f"{tokens[free[1]].place}: {tokens[free[1]].text[:80]!r} is neither a flag nor a value",
            hint="Remove it, or write its flag's whole name in front of it.",
        )
    return free[0] if free else None


def _why_unknown(flag: Flag, tokens: Sequence[Token]) -> str:
    """Return where the value comes from that is not known here; empty where it is known."""
    words = [tokens[index] for index in (flag.index, *flag.values)]
    unknown = next((word for word in words if word.got is None), None)
    return "" if unknown is None else why_unknown(unknown)


def why_unknown(token: Token) -> str:
    why = "" if token.variable is None else token.variable.why
    return why or "is not set in this file"


def _value(flag: Flag, tokens: Sequence[Token]) -> ArgumentValue:
    words = [tokens[index] for index in flag.values] or [tokens[flag.index]]
    texts = [word.text if word.got is None else word.got for word in words]
    if flag.inline is not None:
        texts = [flag.inline if words[0].known else texts[0].partition("=")[2]]
    if flag.argument in SWITCHES | OLDER_SWITCHES:
        said = flag.inline is not None or flag.values
        return (_BOOLEANS.get(texts[0].lower(), True) if said else True) is not flag.negated
    if not flag.values and flag.inline is None:
        return None
    if flag.argument in LISTS:
        return [vllm_values.typed(text) for text in texts]
    return vllm_values.typed(texts[0])


def changes(tokens: Sequence[Token], arguments: Arguments, *, source: str) -> Iterator[Edit]:
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
            edits = list(_edit(found, value, tokens))
            if edits:
                _refuse_elsewhere(found, tokens)
            yield from edits
        elif (words := _written(argument, value)) is not None:
            inline = style_is_inline and len(words) == 2 and argument not in LISTS
            yield Append(("=".join(words),) if inline or _is_risky(words) else tuple(words))


def added(tokens: Sequence[Token], arguments: Arguments, *, source: str) -> list[tuple[str, ...]]:
    """Return the words that ``changes`` appends, flag by flag."""
    found = changes(tokens, arguments, source=source)
    return [change.texts for change in found if isinstance(change, Append)]


def _is_risky(words: Sequence[str]) -> bool:
    """Whether a value begins with a hyphen: it is a value only behind an ``=``."""
    return len(words) == 2 and words[1].startswith("-")


def _prefers_equals(tokens: Sequence[Token]) -> bool:
    flags = [flag for flag in find(tokens) if flag.inline is not None or flag.values]
    inline = sum(flag.inline is not None for flag in flags)
    return 2 * inline >= len(flags)


def _edit(flag: Flag, value: ArgumentValue, tokens: Sequence[Token]) -> Iterator[Edit]:
    words = _written(flag.argument, value)
    found = _value(flag, tokens)
    if words is None:
        yield from (Remove(index) for index in (flag.index, *flag.values))
    elif isinstance(value, bool):
        right = flag.negated is not value and flag.inline is None and not flag.values
        if not right:
            yield Replace(flag.index, _like(flag.spelt, words[0]))
            yield from (Remove(index) for index in flag.values)
    elif isinstance(value, list):
        if not vllm_values.same(found, value):
            yield from (Remove(index) for index in (flag.index, *flag.values))
            yield Append(tuple(words))
    elif not vllm_values.same(comparable(found, value), value):
        word = flag.values[0] if flag.values else flag.index
        if not tokens[word].known:
            yield Change(word, words[1])
        elif flag.values and not words[1].startswith("-"):
            yield Replace(word, words[1])
        else:
            yield Replace(flag.index, f"{flag.spelt}={words[1]}")
            yield from (Remove(index) for index in flag.values)


def comparable(found: ArgumentValue, wanted: ArgumentValue) -> ArgumentValue:
    """Return a value that was found as it is compared with the one wanted: as a text where a text
    is wanted, as a fraction where a fraction is."""
    if isinstance(wanted, str) and isinstance(found, int | float):
        return str(found)
    if isinstance(wanted, str) and isinstance(found, list | dict):
        return wanted if vllm_values.typed(wanted) == found else json.dumps(found)
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


def _refuse_shortened(flag: Flag, tokens: Sequence[Token], arguments: Arguments) -> None:
    if flag.argument in KNOWN or flag.argument in arguments or flag.spelt in SHORT:
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
    if flag.argument not in SWITCHES and flag.inline is None and not flag.values:
        raise TargetError(f"{place}: {flag.spelt} has no value", hint="Give it one, or remove it.")


def _refuse_elsewhere(flag: Flag, tokens: Sequence[Token]) -> None:
    """Refuse to change what is put in, unless it is one variable that this file sets."""
    words = [tokens[index] for index in (flag.index, *flag.values)]
    unknown = [word for word in words if not word.known]
    if not unknown or (len(unknown) == 1 and _can_change(unknown[0])):
        return
    variable = unknown[-1].variable
    why = variable.why if variable is not None else ""
    cure = variable.cure if variable is not None else ""
    raise TargetError(
        f"{unknown[-1].place}: {flag.argument} is decided elsewhere: {unknown[-1].text}"
        + (f", which {why}" if why else ""),
        hint=cure or "Write the value there, or apply the profile to where it comes from.",
    )


def _can_change(word: Token) -> bool:
    return word.variable is not None and word.variable.change is not None
