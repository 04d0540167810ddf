"""Cells that hold words: statuses, flags and names, and whether a row is a request at all."""

import re

from tuner.trace.record import REFUSED, Status
from tuner.trace.values import in_order, is_empty, words

LONGEST_NAME = 60
"""Characters of a name that may have blanks."""

_CODE = re.compile(r"(?:http(?:/\d(?:\.\d)?)?[\s:]*)?([1-5]\d\d)(?:[\s:-].*)?")
"""A code of HTTP with words around it: ``HTTP/1.1 429 Too Many Requests``."""

_CODE_WITHIN = re.compile(r"\b(4\d\d|5\d\d)\b")
WORDS: dict[Status, frozenset[str]] = {
    "ok": words(
        "ok success succeeded successful true completed complete done finished stop length passed "
        "end_turn eos yes status_code_ok status_code_unset unset max_tokens stop_sequence "
        "tool_calls tool_use incomplete default"
    ),
    "aborted": words(
        "aborted abort cancelled canceled client_closed disconnected client_disconnected "
        "client_closed_request"
    ),
    "rejected": words(
        "rejected throttled rate_limited ratelimited overloaded unavailable too_many_requests "
        "service_unavailable resource_exhausted bad_request invalid_argument"
    ),
    "error": words(
        "error failed fail failure false timeout timed_out exception internal_error no internal "
        "internal_server_error status_code_error deadline_exceeded permission_denied not_found "
        "unauthenticated"
    ),
}


def status_of(code: int) -> Status:
    """Return what a status code of HTTP means for a request."""
    if 100 <= code < 400:
        return "ok"
    if code == 499:  # nginx's code, and others', for a client that went away
        return "aborted"
    return "rejected" if code in REFUSED else "error"


def status_in(value: object, *, flag: bool = False) -> Status | None:
    """Return what a status says: a code of HTTP, a word, or a flag; None where it is not known.

    ``flag``: the column says whether it went well, so that 0 means that it did not.
    """
    if isinstance(value, bool):
        return "ok" if value else "error"
    text = str(value).strip().lower().removesuffix(".0")
    if is_empty(value):
        return "ok"
    if text in ("0", "1") and (flag or text == "0"):
        return "ok" if flag == (text == "1") else "error"
    if code := _CODE.fullmatch(text):
        return status_of(int(code[1]))
    word = re.sub(r"[\s-]+", "_", text.rpartition(".")[2])
    return next((status for status, words in WORDS.items() if word in words), None)


def error_in(value: object) -> Status:
    """Return what a column of errors says: nothing, or that there was one."""
    text = str(value).strip().lower()
    nothing = is_empty(value) or text in ("false", "0", "0.0", "{}", "[]", "no", "ok", "no error")
    return "ok" if nothing else "error"


def code_in(value: object) -> Status | None:
    """Return what a code of HTTP within a message means; None where there is none."""
    code = _CODE_WITHIN.search(str(value)[:1000])
    return status_of(int(code[0])) if code else None


def from_cache(value: object) -> bool | None:
    """Return whether a gateway answered from its cache; None where the cell does not say.

    >>> from_cache("SEMANTIC HIT"), from_cache("miss"), from_cache(True), from_cache(64)
    (True, False, True, None)
    """
    text = str(value).strip().lower()
    if text in ("true", "yes", "1", "hit") or text.endswith((" hit", "_hit")):
        return True
    no = words("false no 0 miss disabled bypass refresh dynamic expired")
    return False if text in no or text.endswith((" miss", "_miss")) or is_empty(value) else None


def flag_in(value: object) -> bool | None:
    """Return a flag; None where a cell holds none."""
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).strip().lower())


def word_in(value: object) -> str | None:
    """Return a short word such as ``stop``; nothing that could be text."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or len(value) > 32 or is_empty(value):
        return None
    return value if value.replace("_", "").replace("-", "").isalnum() else None


def str_in(value: object) -> str | None:
    """Return a name, which may be a number; nothing that is so long that it may be text."""
    name = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    return None if name is None or (len(name) > LONGEST_NAME and " " in name) else name


def name_in(value: object) -> str | None:
    """Return a name as others gave it; nothing for what stands for none."""
    return None if is_empty(value) else str_in(value)


LINKS = words(
    "chain agent tool retriever retrieval workflow task parser prompt guardrail reranker "
    "embedding evaluator"
)
"""Kinds of calls that stand above or beside a model's where each call is a row."""

_NO_GENERATION = in_order(
    "/embeddings /pooling /classify /score /rerank /tokenize /detokenize /models /health "
    "/healthz /ping /metrics /version /load /ready /livez /readyz /docs /openapi.json "
    "/favicon.ico"
)


def generates(path: object) -> bool:
    """Whether a request to this path, or of this first line, can generate tokens."""
    if not isinstance(path, str) or is_empty(path):
        return True
    text = path.partition(" ")[2].partition(" ")[0] if " " in path else path
    bare = text.partition("?")[0].rstrip("/").lower()
    return bool(bare) and not bare.endswith(_NO_GENERATION)
