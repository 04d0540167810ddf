"""A YAML scalar character by character: what is read, and where in the file it stands. Pure."""

import re
from collections.abc import Callable, Iterator

import yaml

from tuner.rollout.targets.view import Span, View

_FOLD = re.compile(r"[ \t]*(?:\r\n|[\n\r])[ \t]*(?:(?:\r\n|[\n\r])[ \t]*)*")
_BREAK = re.compile(r"\r\n|[\n\r]")
_ESCAPES = {**yaml.scanner.Scanner.ESCAPE_REPLACEMENTS}
_CODES = {**yaml.scanner.Scanner.ESCAPE_CODES}

Piece = tuple[str, Span]


def view(text: str, node: yaml.ScalarNode) -> View | None:
    """Return the scalar's text, seen in the file; None where the two cannot be matched."""
    start, end = node.start_mark.index, node.end_mark.index
    match node.style:
        case "'" | '"':
            origin = start + 1
            read = (
                _single(text, origin, end - 1)
                if node.style == "'"
                else _double(text, origin, end - 1)
            )
        case "|" | ">":
            return _block(text, node)
        case _:
            origin, read = start, _plain(text, start, end)
    pieces = list(read)
    if "".join(piece for piece, _ in pieces) != node.value:
        return None
    spans = [span for piece, span in pieces for _ in piece]
    return View(node.value, spans, _encoder(node.style), origin)


def _encoder(style: str | None, indent: str = "") -> Callable[[str], str]:
    match style:
        case "'":
            return lambda part: part.replace("'", "''")
        case '"':
            return lambda part: "".join(map(_in_double_quotes, part))
        case "|" | ">":
            return lambda part: part.replace("\n", f"\n{indent}")
        case _:
            return lambda part: part


def _in_double_quotes(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def _folded(match: re.Match[str]) -> Piece:
    """Return what line breaks within a text are read as: one is a blank, n are n - 1 line
    breaks."""
    breaks = len(_BREAK.findall(match[0]))
    return ("\n" * (breaks - 1) or " "), match.span()


def _plain(text: str, start: int, end: int) -> Iterator[Piece]:
    at = start
    while at < end:
        if fold := _FOLD.match(text, at, end):
            yield _folded(fold)
            at = fold.end()
        else:
            yield text[at], (at, at + 1)
            at += 1


def _single(text: str, start: int, end: int) -> Iterator[Piece]:
    at = start
    while at < end:
        if text.startswith("''", at):
            yield "'", (at, at + 2)
            at += 2
        elif fold := _FOLD.match(text, at, end):
            yield _folded(fold)
            at = fold.end()
        else:
            yield text[at], (at, at + 1)
            at += 1


def _double(text: str, start: int, end: int) -> Iterator[Piece]:
    at = joined = start
    while at < end:
        if text[at] == "\\":
            piece, after = _escape(text, at)
        elif fold := _FOLD.match(text, at, end):
            (piece, (_, after)) = _folded(fold)
        else:
            piece, after = text[at], at + 1
        at = after
        if piece:  # an escaped line break goes with what follows
            yield piece, (joined, after)
            joined = after


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    if letter in _CODES:
        after = at + 2 + _CODES[letter]
        return chr(int(text[at + 2 : after], 16)), after
    fold = _FOLD.match(text, at + 1)  # an escaped line break: the lines are joined
    return "", fold.end() if fold else at + 2


def _block(text: str, node: yaml.ScalarNode) -> View | None:
    """Return the view of a text in ``|`` or ``>``: its lines without their indentation."""
    header = _BREAK.search(text, node.start_mark.index)
    if header is None or not node.value:
        return None
    lines = list(_lines(text, header.end(), node.end_mark.index))
    indents = [
        text[start : start + len(line) - len(line.lstrip(" "))]
        for start, stop, _ in lines
        if (line := text[start:stop]).strip()
    ]
    if not indents:
        return None
    most = min(map(len, indents))
    for indent in range(most, -1, -1):  # less than all lines have where an indicator says so
        pieces = _block_pieces(text, lines, indent, folded=node.style == ">")
        read = "".join(piece for piece, _ in pieces)
        if read.startswith(node.value) and not read[len(node.value) :].strip("\n"):
            spans = [span for piece, span in pieces for _ in piece][: len(node.value)]
            return View(node.value, spans, _encoder(node.style, " " * indent), spans[0][0])
    return None


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and the begin of the next line."""
    at = start
    while at < end:
        line_end = _BREAK.search(text, at)
        stop, after = line_end.span() if line_end else (len(text), len(text))
        yield at, stop, after
        at = after


def _block_pieces(
    text: str, lines: list[tuple[int, int, int]], indent: int, *, folded: bool
) -> list[Piece]:
    """Return the characters; a line break is written with the indentation of the line after it."""
    pieces: list[Piece] = []
    begins = [min(start + indent, stop) for start, stop, _ in lines]
    for number, (_, stop, after) in enumerate(lines):
        first, following = begins[number], lines[number + 1 :]
        behind = begins[number + 1] if following else after
        pieces += [(text[at], (at, at + 1)) for at in range(first, stop)]
        if folded and first < stop and text[first] not in " \t" and following:
            beyond = [text[min(one + indent, two) : two] for one, two, _ in following]
            blank = next((n for n, line in enumerate(beyond) if line), len(beyond))
            if blank < len(beyond) and beyond[blank][0] not in " \t":
                pieces += [(" ", (stop, behind))] if blank == 0 else []
                continue
        pieces.append(("\n", (stop, behind)))
    return pieces
