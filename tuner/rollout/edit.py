"""Guess and check: put a value in, read the file again, and keep the guess only if exactly that
argument of exactly that server has changed.

So no guess has to be right: one that is not is thrown away.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from tuner.engines.arguments import FLAGS, SHORT, ArgumentValue, canonical, same, typed
from tuner.errors import TunerError
from tuner.rollout.known import FACTS, NO_WORD
from tuner.rollout.server import Arguments, Server, Span, UnreadableError
from tuner.rollout.words import is_elsewhere
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
    for name, value in wanted.items():
        old = server.arguments.get(name)
        if name in server.arguments and alike(old, value):
            continue
        if is_elsewhere(old):
            raise UnreadableError(f"{name} is decided elsewhere: {old}", str(old))
        arguments = {**server.arguments, name: value}
        if value is None:
            del arguments[name]
        around = _around(text, read(text), server)
        for guess in _guesses(text, server, name, value):
            try:
                every = read(guess)
            except (TunerError, UnreadableError, ValueError):
                continue
            after = next((each for each in every if each.name == server.name), None)
            if after is None or after.problem or after.arguments.keys() != arguments.keys():
                continue
            is_wanted = all(alike(after.arguments[n], arguments[n]) for n in arguments)
            if is_wanted and _around(guess, every, after) == around:
                text, server = guess, after
                break
        else:
            raise UnreadableError(f"{name} cannot be edited safely", name)
    return text, server


def _around(text: str, every: Sequence[Server], server: Server) -> object:
    """Return all that an edit of this server must leave alone."""
    ends = [0, *(place for span in sorted(server.spans) for place in span), len(text)]
    outside = [text[ends[n] : ends[n + 1]] for n in range(0, len(ends), 2)]
    others = [(each.name, each.arguments) for each in every if each.name != server.name]
    return outside, others, server.rest


def alike(left: object, right: object) -> bool:
    """Whether vLLM reads two values alike: a file's 0.90 and '16' are a profile's 0.9 and 16."""
    if isinstance(left, str) or isinstance(right, str):
        left, right = (typed(x) if isinstance(x, str) else x for x in (left, right))
    if type(left) is not bool and type(right) is not bool and isinstance(left, int | float):
        return isinstance(right, int | float) and left == right
    return same(left, right)


def place_of(text: str, server: Server, needle: str) -> tuple[int, str]:
    """Return the line of an argument, or of another part of the text, and the variable behind it;
    empty where it is none."""
    value = server.arguments.get(needle, needle)
    first = str(value[0] if isinstance(value, list) and value else value)
    plain = re.sub(r"[^ -~].*", "", first, flags=re.DOTALL)
    for each in (rf"(?:{_spellings(needle)})(?:{_BEHIND})?", re.escape(needle), re.escape(plain)):
        for begin, end in (*server.spans, (0, len(text))):
            if needle and (match := re.search(each, text[begin:end], re.VERBOSE)):
                variable = re.match(r"\$[({]?(\w+)", match.groupdict().get("old") or "")
                line = text.count("\n", 0, begin + match.start()) + 1
                return line, variable[1] if variable else ""
    return text.count("\n", 0, server.spans[0][0] if server.spans else 0) + 1, ""


def _guesses(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    """Yield texts with the value in it, the most likely first."""
    if server.chart in {"own", "stack"} and isinstance(value, int) and value >= _LARGEST_PLAIN:
        return
    if not isinstance(value, list | dict | None) and _PLAIN.fullmatch(str(value)):
        for span in server.spans:  # only a word that no shell, list or unit needs quotes for
            yield from _replaced(text, span, server, name, value)
    if value is None or (name in server.arguments and not server.chart):
        return
    if server.is_keyed:
        yield from _added_key(text, server, name, value)
    yield from _added(text, server, spelled(name, value, by_blank=_is_apart(server.words)))


def _put(text: str, span: Span, new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


# What is there


def _spellings(name: str) -> str:
    """Return a pattern for all spellings of an argument: as a flag, as a key, short."""
    long = rf"(?i:(?:--)?(?:no[-_])?{re.escape(name).replace('_', '[-_]?')})(?![\w.-])"
    seconds = {flag: of for flag, (of, kind) in FLAGS.items() if kind != "off"} | SHORT
    others = [flag for flag, of in seconds.items() if of == name]
    return "|".join([long, *(rf"(?<!\S){re.escape(f)}(?![\w-])" for f in others)])


_BEHIND = r"""(?:["']?\s*[:=]\s*|(?:[\s"',\\]|-\ |\#[^\n]*\n)+)["']?
    (?P<old>\$\{[^}\n]*\}[^\s"',]*|\$?\(?[^\s"',\\\]}]+)"""
"""What stands between a flag or a key and its value, in whatever list or text, and the value."""


def _replaced(
    text: str, span: Span, server: Server, name: str, value: ArgumentValue
) -> Iterator[str]:
    """Yield texts with another value, or with a switch swapped for its opposite."""
    pattern = re.compile(rf"(?<![\w-])(?P<flag>{_spellings(name)})(?:{_BEHIND})?", re.VERBOSE)
    for match in pattern.finditer(text[slice(*span)]):
        flag, old = match["flag"], match["old"]
        (key, place) = ((span[0] + a, span[0] + b) for a, b in map(match.span, ("flag", "old")))
        if isinstance(value, bool):
            swapped = name if value else f"no_{name}"
            swapped = swapped if "_" in flag else swapped.replace("_", "-")
            if flag.startswith("--"):
                yield _put(text, key, f"--{swapped}")
            elif old and not server.chart:  # vllm serve ignores a key that is false
                yield _put(_put(text, place, "true"), key, swapped)
            elif old:
                yield _put(text, place, str(value).lower())
        elif old:
            new = str(value)
            default = re.fullmatch(r"(\$\{\w+:?-)[^}]*(\}.*)", old)
            yield _put(text, place, default[1] + new + default[2] if default else new)
            if variable := re.match(r"\$[({]?(\w+)", old):
                yield from _set(text, server, variable[1], new)


def _set(text: str, server: Server, name: str, new: str) -> Iterator[str]:
    """Yield texts in which a variable has another value, wherever the file sets it."""
    sets = rf"""(?<!\w){name}["']?(?:=|\s*:|[,\s]*["']?value["']?\s*:)\s*["']?([^\s"';,}}]+)"""
    for begin, end in server.spans:
        for match in re.finditer(sets, text[begin:end]):
            yield _put(text, (begin + match.start(1), begin + match.end(1)), new)


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


def _in_quotes(word: str, quote: str) -> str:
    if quote and quote not in word and "\\" not in word:
        return quote + word + quote
    return yaml_strict.dump(word, is_flow=True)


_HOLDS_A_VARIABLE = r"[^\s\"',\]]*\$[^\s\"',\]]*"


def _added(text: str, server: Server, new: Sequence[str]) -> Iterator[str]:
    """Yield texts with new words behind each of the server's own, the last one first."""
    is_plain = all(_PLAIN.fullmatch(word.replace("=", "", 1)) for word in new)
    for begin, end in server.spans:
        for word in (*map(re.escape, reversed(server.words)), _HOLDS_A_VARIABLE):
            pattern = rf"([\"']?)(?<![\w./-]){word}(?![\w./-])\1"
            for match in reversed([*re.finditer(pattern, text[begin:end])]):
                first, at, quote = begin + match.start(), begin + match.end(), match[1]
                items = [_in_quotes(each, quote) for each in new]
                line = text.rfind("\n", 0, first) + 1
                if re.fullmatch(r"[ \t]*-[ \t]+", text[line:first]):
                    gap, behind = _line_end(text) + text[line:first], end_of_line(text, at)
                    yield _put(text, (behind, behind), "".join(gap + each for each in items))
                elif re.match(r"\s*[],]", text[at:]):
                    gap = [", ", *re.findall(r",\s*(?=\S)", text[begin:at])][-1]
                    yield _put(text, (at, at), "".join(gap + each for each in items))
                if is_plain:
                    at -= len(quote)
                    gaps = re.findall(r"((?:[ \t\r\n]|\\\r?\n)+)(?=-)", text[begin:at])
                    yield _put(text, (at, at), (gaps[-1] if gaps else " ") + " ".join(new))
                    yield _put(text, (at, at), f" {' '.join(new)}")


def _added_key(text: str, server: Server, name: str, value: ArgumentValue) -> Iterator[str]:
    """Yield texts with one more key: of a chart only those that its templates know."""
    begin, end = server.spans[0]
    first = re.match(r"[{\s]*([\"']?)([\w-]+)", text[begin:end])
    is_foreign = server.chart == "stack" and name not in FACTS["stack_keys"]
    if first is None or server.chart == "own" or is_foreign:
        return
    shown, key = yaml_strict.dump(value, is_flow=True), name
    if server.chart == "stack":
        key = re.sub(r"_(\w)", lambda left: left[1].upper(), name)
    elif not server.chart:
        key = name if value is not False else f"no_{name}"
        key = key if "_" in first[2] else key.replace("_", "-")
        shown = "true" if value is False else shown
    new = f"{first[1]}{key}{first[1]}: {shown}"
    margin = re.sub(r"\S", " ", text[text.rfind("\n", 0, begin) + 1 : begin])
    if text[begin] == "{":
        at = begin + len(text[begin:end].rstrip("} \t\r\n,"))
        yield _put(text, (at, at), f", {new}")
    else:
        extra = re.search(rf"\r?\n{margin}extra_?[aA]rgs:", text[begin:end])
        at = begin + extra.start() if extra else end
        yield _put(text, (at, at), f"{_line_end(text)}{margin}{new}")


def end_of_line(text: str, at: int) -> int:
    """Return where the line ends that a place is in, before its line break."""
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - (text[end - 1 : end] == "\r" and end > at)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
