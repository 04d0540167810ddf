"""Guess and check: put a value in, read the file again, and keep the guess only if exactly that
argument of exactly that server has changed.

So no guess has to be right: one that is not is thrown away.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import GRAMMAR, SHORT, canonical
from tuner.engines.vllm.values import same, typed
from tuner.errors import TunerError
from tuner.rollout.in_yaml import STACK, argument_of
from tuner.rollout.known import NO_WORD
from tuner.rollout.server import Server, Span
from tuner.rollout.words import UnreadableError, is_elsewhere
from tuner.system import yaml_strict

Read = Callable[[str], Sequence[Server]]

_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./-]+")
_LARGEST_PLAIN = 10**6
"""Helm writes numbers from here on with an exponent, which vLLM does not read."""


def edited(
    text: str, server: Server, wanted: Mapping[str, ArgumentValue], read: Read
) -> tuple[str, Server]:
    """Return the text in which the server is told these values, and the server as it is then.

    Raises UnreadableError for what cannot be put in.
    """
    if server.problem:
        raise UnreadableError(server.problem, server.near)
    if server.inner is not None:
        return _within(text, server, wanted, read)
    for name, value in wanted.items():
        old = server.told.get(name)
        if name in server.told and alike(old, value):
            continue
        if is_elsewhere(old):
            raise UnreadableError(f"{name} is decided elsewhere: {old}", str(old))
        text, server = _changed(text, server, name, value, read)
    return text, server


def alike(one: object, other: object) -> bool:
    """Whether vLLM reads two values alike: a file's 0.90 and '16' are a profile's 0.9 and 16."""
    if isinstance(one, str) or isinstance(other, str):
        one, other = (typed(x) if isinstance(x, str) else x for x in (one, other))
    if type(one) is not bool and type(other) is not bool and isinstance(one, int | float):
        return isinstance(other, int | float) and one == other
    return same(one, other)


def _within(
    text: str, server: Server, wanted: Mapping[str, ArgumentValue], read: Read
) -> tuple[str, Server]:
    """Edit a file within the file."""
    assert server.inner is not None
    (begin, end), indent, inner = server.inner

    def whole(changed: str) -> str:
        return text[:begin] + re.sub(r"(?m)^(?=[^\r\n])", indent, changed) + text[end:]

    def read_inner(changed: str) -> Sequence[Server]:
        found = [each.inner for each in read(whole(changed)) if each.inner]
        return [server for (at, _), _, server in found if at == begin]

    changed, _ = edited(re.sub(rf"(?m)^{indent}", "", text[begin:end]), inner, wanted, read_inner)
    found = read(whole(changed))
    after = next(each for each in found if each.inner and each.inner[2].name == inner.name)
    if after.rest != server.rest:
        raise UnreadableError("cannot be edited safely")
    return whole(changed), after


def _changed(
    text: str, server: Server, name: str, value: ArgumentValue, read: Read
) -> tuple[str, Server]:
    wanted = {**server.told, name: value}
    if value is None:
        del wanted[name]
    others = _others(read(text), server)
    for guess in _guesses(text, server, name, value):
        if guess == text:
            continue
        try:
            found = read(guess)
        except (TunerError, UnreadableError, ValueError):
            continue
        after = next((each for each in found if each.name == server.name), None)
        if after is None or after.problem or after.rest != server.rest:
            continue
        if _says(after.told, wanted) and _others(found, after) == others:
            return guess, after
    raise UnreadableError(f"{name} cannot be edited safely", name)


def _others(found: Sequence[Server], server: Server) -> list[object]:
    return [(each.name, each.told) for each in found if each.name != server.name]


def _says(told: Mapping[str, ArgumentValue], wanted: Mapping[str, ArgumentValue]) -> bool:
    return told.keys() == wanted.keys() and all(alike(told[n], wanted[n]) for n in wanted)


def _guesses(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    """Yield texts with the value in it, the most likely first."""
    if server.form == "keys":
        yield from _in_keys(text, server, name, value)
        if server.extra is not None:
            yield from _replaced(text, server.extra, name, value)
            yield from _added_to_list(text, server.extra, name, value)
        return
    yield from _replaced(text, server, name, value)
    if name not in server.told and value is not None:
        if server.form == "list":
            yield from _added_to_list(text, server, name, value)
        else:
            yield from _added_to_text(text, server, name, value)


def _put(text: str, span: Span, new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


# A flag that is there


def flags(name: str) -> str:
    """Return a pattern for all spellings of an argument's flag."""
    long = rf"--{re.escape(name).replace('_', '[-_]')}"
    others = [flag for flag, meaning in SHORT.items() if meaning == name]
    others += [flag for flag, meaning in GRAMMAR.also.items() if meaning == name]
    return "|".join([rf"{long}(?![\w.-])", *(rf"(?<!\S){re.escape(f)}(?![\w-])" for f in others)])


_BEHIND = r"(?:=|(?:[\s\"',\\]|- |#[^\n]*\n)+)[\"']?(?P<old>\$?[({]?[^\s\"',\\\]]+)"
"""What stands between a flag and its value, in whatever list or text, and the value."""


def variable_of(text: str, server: Server, name: str) -> str:
    """Return the variable that an argument's value comes from; empty where it is none."""
    for begin, end in server.spans:
        for found in re.finditer(rf"(?:{flags(name)}){_BEHIND}", text[begin:end]):
            if variable := re.match(r"\$[({]?(\w+)", found["old"]):
                return variable[1]
    return ""


def _replaced(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    for begin, end in server.spans:
        raw = text[begin:end]
        if isinstance(value, bool):
            yield from _switched(text, (begin, end), name, to=value)
            continue
        new = _word(value)
        if new is None:
            return
        for found in re.finditer(rf"(?:{flags(name)}){_BEHIND}", raw):
            old, (at, to) = found["old"], (begin + found.start("old"), begin + found.end("old"))
            inner = re.fullmatch(r"(\$\{\w+:?-)[^}]*(\}.*)", old)
            yield _put(text, (at, to), inner[1] + new + inner[2] if inner else new)
            if variable := re.match(r"\$[({]?(\w+)", old):
                yield from _set(text, server, variable[1], new)


def _set(text: str, server: Server, name: str, new: str) -> Iterator[str]:
    """Yield texts in which a variable has another value, wherever the file sets it."""
    if name in server.variables:
        span = server.variables[name]
        raw = text[slice(*span)]
        yield _put(text, span, re.sub(r"[^\s\"'=]+(?=[\"']?$)", new, raw, count=1))
    for begin, end in server.spans:
        for found in re.finditer(rf"(?<!\w){name}=[\"']?([^\s\"';]+)", text[begin:end]):
            yield _put(text, (begin + found.start(1), begin + found.end(1)), new)


def _switched(text: str, span: Span, name: str, *, to: bool) -> Iterator[str]:
    for found in re.finditer(r"--[a-z][\w-]*", text[slice(*span)]):
        if canonical(found[0][2:])[0] != name:
            continue
        flag = f"--{name}" if to else f"--no_{name}"
        new = flag if "_" in found[0] else flag.replace("_", "-")
        yield _put(text, (span[0] + found.start(), span[0] + found.end()), new)


def _word(value: ArgumentValue) -> str | None:
    """Return a value as a word that no shell, list or unit needs quotes for; None for others."""
    if isinstance(value, list | dict) or value is None:
        return None
    return str(value) if _PLAIN.fullmatch(str(value)) else None


# A flag that is not there yet


def spelled(name: str, value: ArgumentValue, *, by_blank: bool = False) -> list[str]:
    """Return the words with which ``vllm serve`` is told one argument.

    >>> spelled("max_num_seqs", 8), spelled("enforce_eager", False)
    (['--max-num-seqs=8'], ['--no-enforce-eager'])
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    word = json.dumps(value) if isinstance(value, dict) else str(value)
    return [f"--{flag}", word] if by_blank else [f"--{flag}={word}"]


def _is_apart(words: Sequence[str]) -> bool:
    """Whether most flags have their values behind a blank, or as an item of their own."""
    valued = [w for w in words if w.startswith("--") and canonical(w[2:])[0] not in NO_WORD]
    return 2 * sum("=" in word for word in valued) < len(valued)


def _added_to_list(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    words = spelled(name, value, by_blank=_is_apart(server.words))
    if not server.items:
        return
    last, end = server.items[-1], server.items[-1].span[1]
    before = text[: last.span[0]]
    if server.is_flow:
        gap = ", "
        if len(server.items) > 1:
            gap = text[server.items[-2].span[1] : last.span[0]]
        yield _put(text, (end, end), "".join(gap + _quoted(word, last.style) for word in words))
        return
    margin = before[before.rfind("\n") + 1 :]
    end = _end_of_line(text, end)
    new = "".join(_line_end(text) + margin + _quoted(word, last.style) for word in words)
    yield _put(text, (end, end), new)


def _quoted(word: str, style: str) -> str:
    if style and style not in word and "\\" not in word:
        return style + word + style
    return yaml_strict.dump(word, is_flow=True)


def _added_to_text(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    words = spelled(name, value, by_blank=_is_apart(server.words))
    if any(not _PLAIN.fullmatch(word.replace("=", "", 1)) for word in words):
        return
    for begin, end in server.spans:
        for word in reversed(server.words):
            if len(word) < 2 and not word.isalnum():
                continue
            places = re.finditer(rf"(?<![\w./-]){re.escape(word)}(?![\w./-])", text[begin:end])
            for found in reversed(list(places)):
                at = begin + found.end()
                gaps = re.findall(r"((?:[ \t\r\n]|\\\r?\n)+)(?=-)", text[begin:at])
                gap = gaps[-1] if gaps else " "
                yield _put(text, (at, at), gap + " ".join(words))
                yield _put(text, (at, at), " " + " ".join(words))
        last = re.search(r"[\]\"'\s]*$", text[begin:end])
        at = begin + (last.start() if last else 0)
        yield _put(text, (at, at), " " + " ".join(words))


# Keys


def _in_keys(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    shown = yaml_strict.dump(value, is_flow=True)
    if server.is_chart and isinstance(value, int) and value >= _LARGEST_PLAIN:
        shown = f'"{value}"'
    is_there = False
    for item in server.items:
        argument, is_off = argument_of(item.name)
        if argument != name:
            continue
        is_there = True
        if isinstance(value, bool) and not server.is_chart:
            yield _put(_put(text, item.span, "true"), item.key, _key(name, item.name, is_on=value))
        new = f"{item.style}{shown}{item.style}" if item.style and shown.isalnum() else shown
        yield _put(text, item.span, yaml_strict.dump(not value, is_flow=True) if is_off else new)
    knows = server.proof == "vllmConfig" and name in STACK if server.is_chart else True
    if not is_there and server.items and knows:
        yield from _added_key(text, server, name, value, shown)


def _added_key(
    text: str, server: Server, name: str, value: ArgumentValue, shown: str
) -> Iterator[str]:
    key = _key(name, server.items[0].name, is_on=value is not False)
    if server.is_chart:
        key = re.sub(r"_(\w)", lambda one: one[1].upper(), name)
    elif isinstance(value, bool):
        shown = "true"
    if server.is_flow:
        end = server.items[-1].span[1]
        yield _put(text, (end, end), f", {key}: {shown}")
        return
    begin = server.items[0].key[0]
    margin = text[text.rfind("\n", 0, begin) + 1 : begin].replace("-", " ")
    for each in reversed(server.items):
        end = _end_of_line(text, each.span[1])
        yield _put(text, (end, end), f"{_line_end(text)}{margin}{key}: {shown}")


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - (text[end - 1 : end] == "\r" and end > at)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _key(name: str, like: str, *, is_on: bool) -> str:
    key = name if is_on else f"no_{name}"
    return key if "_" in like else key.replace("_", "-")
