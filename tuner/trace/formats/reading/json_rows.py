"""Rows from JSON objects, for every format that is written so."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from tuner.errors import TraceError
from tuner.trace.formats.reading.record import (
    Reason,
    Row,
    diagnose_object,
    has_duplicate_key,
    problem,
    unreadable,
)
from tuner.trace.formats.reading.trace_file import TraceFile

Object = dict[str, Any]
Fields = dict[str, Any]
"""A row by the names of the canonical format, in its units; None is absent."""

TEXT_KEYS = frozenset(
    {
        *("text_input", "text", "texts", "prompt", "prompts", "messages", "content"),
        *("input", "output", "inputs", "outputs", "completion", "response"),
        *("generated_text", "generated_texts", "prompt_token_ids", "output_token_ids"),
        *("system_message", "user_context_message", "payload"),
        *("proxy_server_request", "request_body", "response_body"),
    }
)
"""Keys under which other tools keep what was said."""

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)
ROWS_FOR_BLOCK_SIZE = 1000

LINES_ABOVE = 50

NO_TEXT = ("", "{}", "[]", "null", "None", "redacted-by-litellm")
NO_TEXT_KEYS = frozenset(
    {
        *("role", "type", "object", "finish_reason", "id", "model", "index"),
        *("inputContentType", "outputContentType", "inputBodyS3Path", "outputBodyS3Path"),
    }
)
"""Keys under which messages, and the logs of Bedrock, describe themselves."""

_decode = msgspec.json.Decoder().decode


@lru_cache(maxsize=1)
def opening(head: bytes) -> Object:
    """Return the first JSON object of a file, as far as its head shows it; else an empty one.

    Programs that log JSON say other things first: some lines of text may stand above it.
    """
    text = head.strip()
    first, *others = text.split(b"\n", LINES_ABOVE)
    found = _first_object(first)
    if found is None:
        found = _salvage(text.decode(errors="replace"))
    if not found:
        rows = (_first_object(line) for line in others[: LINES_ABOVE - 1] if line.startswith(b'{"'))
        found = next((row for row in rows if row), {})
    return found


def rows(
    lines: TraceFile, convert: Callable[[Object], Iterable[Fields | Reason]], *, block_size: int
) -> Iterator[Row]:
    """Yield the rows that ``convert`` makes of each object, if they can be used; count the others.

    An object may hold no request, one or several. Raises TraceError for one that holds text, unless
    that was allowed.
    """
    for number, parsed in objects(lines):
        for fields in convert(parsed):
            row = usable(fields, number, lines, block_size=block_size)
            if row is not None:
                lines.tally.rows_kept += 1
                yield row


def objects(
    lines: TraceFile, stream: Iterable[tuple[int, bytes]] | None = None
) -> Iterator[tuple[int, Object]]:
    """Yield ``(line number, object)``; count what is no object as a row that was dropped.

    ``stream``: some lines of the file, by default all.

    Raises TraceError for an object that holds text, unless that was allowed.
    """
    for number, line in lines if stream is None else stream:
        try:
            parsed = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            parsed = None
        reason: Reason | None = None
        if not isinstance(parsed, dict):
            reason = broken(line, number, lines)
        elif line.count(b":") != len(parsed) and has_duplicate_key(line):
            reason = "duplicate_key"
        if reason is None:
            check_text(parsed, number, lines)
            yield number, parsed
        else:
            lines.tally.lose(reason, number)


def with_tokens(found: Iterable[Row], lines: TraceFile, what: str, hint: str) -> Iterator[Row]:
    """Yield the rows. Raises TraceError, at the end, if all that is wrong is that none has tokens.

    What the user writes into a log format is the user's to change.
    """
    yield from found
    tally = lines.tally
    if not tally.rows_kept and "no_tokens" in tally.dropped:
        raise TraceError(f"{lines.place}:{tally.first_line['no_tokens']}: {what}", hint=hint)


def usable(
    fields: Fields | Reason, number: int, lines: TraceFile, *, block_size: int = 1
) -> Row | None:
    """Count a row as read, and return it; None for one that cannot be used, which is counted."""
    row = _checked(fields, block_size)
    if isinstance(row, Row):
        lines.tally.rows_read += 1
        return row
    lines.tally.lose(row, number)
    return None


def _checked(fields: Fields | Reason, block_size: int) -> Row | Reason:
    if isinstance(fields, str):
        return fields
    known = {key: value for key, value in fields.items() if value is not None}
    try:
        row = msgspec.convert(known, Row)
    except msgspec.ValidationError:
        return diagnose_object(known)
    return problem(row, block_size) or row


def broken(line: bytes, number: int, lines: TraceFile) -> Reason:
    """Return why what should be a JSON object is none."""
    reason = unreadable(line) or "malformed"
    if number == lines.unterminated and reason in ("malformed", "encoding"):
        return "truncated"
    return reason


def check_text(parsed: Object, number: int, lines: TraceFile) -> None:
    """Raise TraceError for an object that holds text, unless that was allowed."""
    for key in TEXT_KEYS & parsed.keys():
        if is_text(parsed[key]):
            lines.refuse_text(number, key)


def block_size(lines: TraceFile, usual: int) -> int:
    """Return how many tokens one of ``hash_ids`` stands for, as the first rows of a file show.

    Tools of one format use ids for 16 to 512 tokens, and say so nowhere in the file. It is the
    usual size, unless the first rows do not fit that and fit one other.
    """
    fitting = set(BLOCK_SIZES) | {usual}
    for number, line in lines.again():
        found = opening(line)
        tokens, ids = found.get("input_length"), found.get("hash_ids")
        if ids and isinstance(ids, list) and isinstance(tokens, int):
            fitting = {size for size in fitting if len(ids) in (tokens // size, -(-tokens // size))}
        if number > ROWS_FOR_BLOCK_SIZE or not fitting:
            break
    if usual in fitting or len(fitting) != 1:
        return usual
    (found_size,) = fitting
    lines.tally.note(f"hash_ids are taken for {found_size} tokens each, by their number")
    return found_size


def is_text(value: object) -> bool:
    """Whether a value under one of the keys for text says anything."""
    if isinstance(value, str):
        return value not in NO_TEXT
    if isinstance(value, dict):
        return any(is_text(held) for key, held in value.items() if key not in NO_TEXT_KEYS)
    return isinstance(value, list) and any(map(is_text, value))


def first_listed(head: bytes, key: str) -> Object:
    """Return the first object of a list in a file's first object, which may be far from whole."""
    _, found, rest = head.partition(b'"' + key.encode() + b'"')
    listed = rest.lstrip(b" \t\r\n:")
    return opening(listed) if found and listed.startswith(b"[") else {}


def _first_object(line: bytes) -> Object | None:
    """Return the object that a line is, or the first of its list; None where it is no JSON."""
    try:
        parsed = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    return parsed if isinstance(parsed, dict) else {}


def _salvage(text: str) -> Object:
    """Return the whole members that an object begins with, whose end may be missing."""
    decoder = json.JSONDecoder()
    found: Object = {}
    at = _behind(text, 0, "[{")
    try:
        while text[at : at + 1] == '"':
            key, at = decoder.raw_decode(text, at)
            at = _behind(text, at, ":")
            found[key], at = decoder.raw_decode(text, at)
            at = _behind(text, at, ",")
    except (ValueError, RecursionError):
        pass
    return found


def _behind(text: str, at: int, marks: str) -> int:
    """Return the position behind white space and each of the marks, once and in their order."""
    for mark in ("", *marks):
        if text[at : at + 1] == mark:
            at += 1
        while text[at : at + 1].isspace():
            at += 1
    return at
