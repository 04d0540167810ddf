"""Text of prompts and answers: recognized, refused, and never shown.

No message shows a cell that could be text. Of headings and keys only what is no sentence is shown.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuner.errors import TraceError
from tuner.trace.files import TraceFile
from tuner.trace.rows import Object, Raw
from tuner.trace.values import as_object, number, words

TEXT_KEYS = words(
    "text_input text texts prompt prompts messages content input output inputs outputs "
    "completion completions response generated_text generated_texts prompt_token_ids "
    "output_token_ids system_message system_instructions user_context_message payload "
    "proxy_server_request request_body response_body arguments input.value output.value "
    "ai.response.object ai.response.toolcalls ai.response.reasoning ai.toolcall.args "
    "ai.toolcall.result gen_ai.tool.call.result mlflow.spaninputs mlflow.spanoutputs "
    "all_messages_events final_result pydantic_ai.all_messages request_data response_data "
    "llm.prompt_template.variables retrieval.documents"
)
"""Keys, or ends of dotted paths, under which other tools keep what was said."""

NO_TEXT = ("", "{}", "[]", "null", "None", "redacted-by-litellm")
NO_TEXT_KEYS = words(
    "role type object finish_reason id model index inputContentType outputContentType "
    "inputBodyS3Path outputBodyS3Path"
)
"""Keys under which messages, and the logs of Bedrock, describe themselves."""


def shown_key(key: str) -> str:
    """Return a key for a message: one that could be a sentence is not shown."""
    is_key = re.fullmatch(r"[A-Za-z_$@#][\w.$@:/#-]{0,47}", key)
    return key if is_key else "a key that is not shown"


@lru_cache(maxsize=4096)
def names_text(key: str) -> bool:
    """Whether other tools keep text under this key."""
    key = key.lower()
    return key.rpartition(".")[2] in TEXT_KEYS or key in TEXT_KEYS


def is_text(value: object) -> bool:
    """Whether a value under one of the keys for text says anything."""
    if isinstance(value, str):
        return value not in NO_TEXT and number(value) is None
    if isinstance(value, dict):
        return any(is_text(held) for key, held in value.items() if key not in NO_TEXT_KEYS)
    return isinstance(value, list) and any(map(is_text, value))


def look_for_text(raw: Raw, file: TraceFile) -> None:
    """Raise TraceError for the first row that holds text, unless that is allowed."""
    if file.allow_text:
        return
    strings = (value for row in raw.objects for value in row.values() if type(value) is str)
    holds_others = raw.kinds & {dict, list} or (
        str in raw.kinds and any(string[:1] == "{" for string in strings)
    )
    if holds_others or any(map(names_text, raw.names)):
        _look_in(raw.objects, raw, file)
    for name, column in raw.columns.items():
        is_string = pa.types.is_string(column.type)
        has_json = is_string and pc.any(pc.starts_with(column, pattern="{")).as_py()
        if names_text(name) or has_json or pa.types.is_nested(column.type):
            _look_in([{name: cell} for cell in column.to_pylist()], raw, file)


def _look_in(rows: Sequence[Object], raw: Raw, file: TraceFile) -> None:
    for line, row in zip(raw.lines.tolist(), rows, strict=False):
        if key := _text_in(row):
            raise TraceError(
                f"{file.at(line)}: holds text ({shown_key(key)})",
                hint="tuner trace import --allow-text reads the rest; no text is ever written.",
            )


def _text_in(value: Any, depth: int = 6) -> str:  # noqa: ANN401 - any JSON
    """Return the key under which text stands; an empty one for none."""
    if isinstance(value, list):
        nested = (each for each in value if depth and type(each) in (dict, list))
        return next(filter(None, (_text_in(each, depth - 1) for each in nested)), "")
    for key, held in ((as_object(value) if depth else None) or {}).items():
        if names_text(key) and is_text(held):
            return key
        if type(held) in (dict, list, str) and (result := _text_in(held, depth - 1)):
            return result
    return ""
