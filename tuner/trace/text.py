"""Text of prompts and answers: recognized, refused, and never shown.

No message shows a cell that could be text. Of headings and keys only what is no sentence is shown.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from tuner.errors import TraceError
from tuner.trace.raw import Object, Raw, Tally
from tuner.trace.values import as_object, number, words

TEXT_KEYS = words(
    "text_input text texts prompt prompts messages content input output inputs outputs "
    "completion response generated_text generated_texts prompt_token_ids output_token_ids "
    "system_message user_context_message payload proxy_server_request request_body "
    "response_body"
)
"""Keys under which other tools keep what was said."""

NO_TEXT = ("", "{}", "[]", "null", "None", "redacted-by-litellm")
NO_TEXT_KEYS = words(
    "role type object finish_reason id model index inputContentType outputContentType "
    "inputBodyS3Path outputBodyS3Path"
)
"""Keys under which messages, and the logs of Bedrock, describe themselves."""

_KEY = re.compile(r"[A-Za-z_$@#][\w.$@:/#-]{0,47}")


def shown_key(key: str) -> str:
    """Return a key for a message: one that could be a sentence is not shown."""
    return key if _KEY.fullmatch(key) else "a key that is not shown"


def is_text(value: object) -> bool:
    """Whether a value under one of the keys for text says anything."""
    if isinstance(value, str):
        return value not in NO_TEXT and number(value) is None
    if isinstance(value, dict):
        return any(is_text(held) for key, held in value.items() if key not in NO_TEXT_KEYS)
    return isinstance(value, list) and any(map(is_text, value))


def refuse_text(tally: Tally, line: int, key: str) -> None:
    """Raise TraceError for a row that holds text, unless the user allows it."""
    if not tally.allow_text:
        raise TraceError(
            f"{tally.at(line)}: holds text ({shown_key(key)})",
            hint="tuner trace import --allow-text reads the rest; no text is ever written.",
        )


def look_for_text(raw: Raw, tally: Tally) -> None:
    """Raise TraceError for the first row that holds text, unless that is allowed."""
    if tally.allow_text:
        return
    if raw.objects is not None:
        _in_objects(raw.objects, raw, tally)
        return
    for name, column in raw.columns.items():
        is_named = name.rpartition(".")[2].lower() in TEXT_KEYS
        for cell in column.dictionary_encode().dictionary.to_pylist() if is_named else ():
            if is_text(cell):
                places = [place for place, one in enumerate(column.to_pylist()) if one == cell]
                refuse_text(tally, int(raw.lines[places[0]]), name)
        kinds = column[:1].to_pylist() if not is_named else []
        if kinds and isinstance(kinds[0], str) and kinds[0].startswith("{"):
            _in_objects([as_object(cell) or {} for cell in column.to_pylist()], raw, tally)


def _in_objects(rows: Sequence[Object], raw: Raw, tally: Tally) -> None:
    """Look at each row; only at its keys where all values are numbers."""
    types = {*map(type, chain.from_iterable(map(dict.values, rows)))}
    keys = raw.keys if raw.objects is rows else TEXT_KEYS
    if not types & {dict, list} and not keys & TEXT_KEYS:
        strings = str in types
        if not strings or not any(
            type(one) is str and one[:1] == "{" for row in rows for one in row.values()
        ):
            return
    for line, row in zip(raw.lines.tolist(), rows, strict=True):
        if key := _text_in(row):
            refuse_text(tally, line, key)


def _text_in(value: Any, depth: int = 6) -> str:  # noqa: ANN401 - any JSON
    """Return the key under which text stands; an empty one for none."""
    if isinstance(value, list):
        held = (
            (_text_in(one, depth - 1) for one in value if type(one) in (dict, list))
            if depth
            else ()
        )
        return next(filter(None, held), "")
    inner = as_object(value) if depth else None
    for key, one in (inner or {}).items():
        if key.rpartition(".")[2].lower() in TEXT_KEYS and is_text(one):
            return key
        is_nested = type(one) in (dict, list) or (type(one) is str and one[:1] == "{")
        if is_nested and (found := _text_in(one, depth - 1)):
            return found
    return ""
