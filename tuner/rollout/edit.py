"""Guess and check: put a value in, read the file again, and keep the guess only if exactly that
argument of exactly that server has changed.

So no guess has to be right: one that is not is thrown away.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import GRAMMAR, SHORT, canonical
from tuner.engines.vllm.values import same, typed
from tuner.errors import TunerError
from tuner.rollout.in_yaml import STACK
from tuner.rollout.known import NO_WORD
from tuner.rollout.server import Arguments, End, Server, Span
from tuner.rollout.words import UnreadableError, is_elsewhere
from tuner.system import yaml_strict

Read = Callable[[str], Sequence[Server]]

_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./-]+")
_LARGEST_PLAIN = 10**6
"""Helm writes numbers from here on with an exponent, which vLLM does not read."""


def edited(text: str, server: Server, wanted: Arguments, read: Read) -> tuple[str, Server]:
    """Return the text in which the server has these arguments, and the server as it is then.

    Raises UnreadableError for what cannot be put in.
    """
    if server.problem:
        raise UnreadableError(server.problem, server.near)
    if server.inner is not None:
        return _within(text, server, wanted, read)
    for name, value in wanted.items():
        old = server.arguments.get(name)
        if name in server.arguments and alike(old, value):
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


def _within(text: str, server: Server, wanted: Arguments, read: Read) -> tuple[str, Server]:
    """Edit a file within the file."""
    assert server.inner is not None
    (begin, end), indent, inner = server.inner

    def outer(changed: str) -> str:
        return text[:begin] + re.sub(r"(?m)^(?=[^\r\n])", indent, changed) + text[end:]

    def read_inner(changed: str) -> Sequence[Server]:
        blocks = [each.inner for each in read(outer(changed)) if each.inner]
        return [server for (at, _), _, server in blocks if at == begin]

    changed, _ = edited(re.sub(rf"(?m)^{indent}", "", text[begin:end]), inner, wanted, read_inner)
    every = read(outer(changed))
    after = next(each for each in every if each.inner and each.inner[2].name == inner.name)
    if after.rest() != server.rest():
        raise UnreadableError("cannot be edited safely")
    return outer(changed), after


def _changed(
    text: str, server: Server, name: str, value: ArgumentValue, read: Read
) -> tuple[str, Server]:
    """Return the first guess that changes this argument and nothing else."""
    wanted = {**server.arguments, name: value}
    if value is None:
        del wanted[name]
    others = _others(read(text), server)
    for guess in _guesses(text, server, name, value):
        try:
            every = read(guess)
        except (TunerError, UnreadableError, ValueError):
            continue
        after = next((each for each in every if each.name == server.name), None)
        if after is None or after.problem or after.arguments.keys() != wanted.keys():
            continue
        is_wanted = all(alike(after.arguments[n], wanted[n]) for n in wanted)
        if is_wanted and _others(every, after) == others and after.rest() == server.rest():
            return guess, after
    raise UnreadableError(f"{name} cannot be edited safely", name)


def _others(every: Sequence[Server], server: Server) -> list[object]:
    return [(each.name, each.arguments) for each in every if each.name != server.name]


def _guesses(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    """Yield texts with the value in it, the most likely first."""
    for span in server.spans:
        if isinstance(value, bool):
            yield from _switched(text, span, name, to=value)
        else:
            yield from _replaced(text, span, server, name, value)
    if value is None or (name in server.arguments and not server.is_chart):
        return
    for end in server.ends:
        if end.form == "keys":
            yield from _added_key(text, end, server, name, value)
            continue
        words = spelled(name, value, by_blank=_is_apart(server.words))
        if end.form == "list":
            yield _added_to_list(text, end, words)
        elif all(_PLAIN.fullmatch(word.replace("=", "", 1)) for word in words):
            yield from _added_to_text(text, end.span, server, " ".join(words))


def _put(text: str, span: Span, new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


# What is there


def flags(name: str) -> str:
    """Return a pattern for all spellings of an argument: as a flag, as a key, short."""
    long = rf"(?i:(?:--)?{re.escape(name).replace('_', '[-_]?')})(?![\w.-])"
    others = [flag for flag, meaning in ({**SHORT, **GRAMMAR.also}).items() if meaning == name]
    return "|".join([long, *(rf"(?<!\S){re.escape(f)}(?![\w-])" for f in others)])


_BEHIND = r"""(?:["']?\s*[:=]\s*|(?:[\s"',\\]|-\ |\#[^\n]*\n)+)["']?
    (?P<old>\$\{[^}\n]*\}[^\s"',]*|\$?\(?[^\s"',\\\]}]+)"""
"""What stands between a flag or a key and its value, in whatever list or text, and the value."""


def _values(text: str, span: Span, name: str) -> Iterator[tuple[str, Span]]:
    """Yield each value of an argument, and where it stands."""
    pattern = re.compile(rf"(?<![\w-])(?:{flags(name)}){_BEHIND}", re.VERBOSE)
    for found in pattern.finditer(text[slice(*span)]):
        begin, end = found.span("old")
        yield found["old"], (span[0] + begin, span[0] + end)


def variable_of(text: str, server: Server, name: str) -> str:
    """Return the variable that an argument's value comes from; empty where it is none."""
    values = (old for span in server.spans for old, _ in _values(text, span, name))
    variables = (re.match(r"\$[({]?(\w+)", old) for old in values)
    return next((each[1] for each in variables if each), "")


def _replaced(
    text: str, span: Span, server: Server, name: str, value: ArgumentValue
) -> Iterator[str]:
    """Yield texts with another value; it is a word that no shell, list or unit needs quotes for."""
    new = str(value)
    if isinstance(value, list | dict) or value is None or not _PLAIN.fullmatch(new):
        return
    for old, place in _values(text, span, name):
        if server.is_chart and isinstance(value, int) and value >= _LARGEST_PLAIN:
            new = f'"{value}"'
        default = re.fullmatch(r"(\$\{\w+:?-)[^}]*(\}.*)", old)
        yield _put(text, place, default[1] + new + default[2] if default else new)
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
    """Yield texts with a flag swapped for its opposite, or with another word behind a key."""
    key = r"--[a-z][\w-]*|[\w-]+(?=[\"']?\s*:\s*[\"']?(\w+))"
    for found in re.finditer(key, text[slice(*span)]):
        is_flag = found[0].startswith("--")
        argument, is_off = canonical(re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", found[0]).lower())
        if argument != name and canonical(found[0][2:])[0] != name:
            continue
        swapped = name if to else f"no_{name}"
        swapped = swapped if "_" in found[0] else swapped.replace("_", "-")
        place = (span[0] + found.start(), span[0] + found.end())
        if is_flag:
            yield _put(text, place, f"--{swapped}")
        elif found[1]:
            value = (span[0] + found.start(1), span[0] + found.end(1))
            yield _put(_put(text, value, "true"), place, swapped)
            yield _put(text, value, str(to is not is_off).lower())


# What is not there yet


def spelled(name: str, value: ArgumentValue, *, by_blank: bool = False) -> list[str]:
    """Return the words with which ``vllm serve`` is given one argument.

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


def _added_to_list(text: str, end: End, words: Sequence[str]) -> str:
    begin, raw = end.span[0], text[slice(*end.span)]
    raw = raw[:-1].rstrip(" \t\r\n,") if end.is_flow else raw.rstrip()
    quote = raw[-1:] if raw[-1:] in {"'", '"'} else ""
    new = [
        quote + word + quote
        if quote and quote not in word and "\\" not in word
        else yaml_strict.dump(word, is_flow=True)
        for word in words
    ]
    at = begin + len(raw)
    if end.is_flow:
        gap = ([", ", *re.findall(r",\s*(?=\S)", raw)])[-1]
        return _put(text, (at, at), "".join(gap + word for word in new))
    dash = re.match(r"-[ \t]*", raw)
    gap = _line_end(text) + _margin(text, begin) + (dash[0] if dash else "")
    at = _end_of_line(text, at)
    return _put(text, (at, at), "".join(gap + word for word in new))


def _added_to_text(text: str, span: Span, server: Server, new: str) -> Iterator[str]:
    """Yield texts with new words behind each of the server's own, the last one first."""
    begin, end = span
    for word in reversed(server.words):
        if len(word) < 2 and not word.isalnum():
            continue
        places = re.finditer(rf"(?<![\w./-]){re.escape(word)}(?![\w./-])", text[begin:end])
        for found in reversed(list(places)):
            at = begin + found.end()
            gaps = re.findall(r"((?:[ \t\r\n]|\\\r?\n)+)(?=-)", text[begin:at])
            yield _put(text, (at, at), (gaps[-1] if gaps else " ") + new)
            yield _put(text, (at, at), f" {new}")
    last = re.search(r"[\]\"'\s]*$", text[begin:end])
    at = begin + (last.start() if last else 0)
    yield _put(text, (at, at), f" {new}")


def _added_key(
    text: str, end: End, server: Server, name: str, value: ArgumentValue
) -> Iterator[str]:
    if server.is_chart and not (server.proof == "vllmConfig" and name in STACK):
        return
    begin, raw = end.span[0], text[slice(*end.span)]
    first = re.match(r"[{\s]*([\"']?)([\w-]+)", raw)
    if first is None:
        return
    key = name if server.is_chart or value is not False else f"no_{name}"
    shown = yaml_strict.dump(value, is_flow=True)
    if server.is_chart:
        key = re.sub(r"_(\w)", lambda one: one[1].upper(), name)
        shown = f'"{value}"' if isinstance(value, int) and value >= _LARGEST_PLAIN else shown
    else:
        key = key if "_" in first[2] else key.replace("_", "-")
        shown = "true" if isinstance(value, bool) else shown
    new = f"{first[1]}{key}{first[1]}: {shown}"
    if end.is_flow:
        at = begin + len(raw[:-1].rstrip(" \t\r\n,"))
        yield _put(text, (at, at), f", {new}")
    else:
        at = _end_of_line(text, begin + len(raw.rstrip()))
        yield _put(text, (at, at), _line_end(text) + _margin(text, begin) + new)


def _margin(text: str, begin: int) -> str:
    """Return what stands before a block in its line, without the dashes of lists around it."""
    return re.sub(r"\S", " ", text[text.rfind("\n", 0, begin) + 1 : begin])


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - (text[end - 1 : end] == "\r" and end > at)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
