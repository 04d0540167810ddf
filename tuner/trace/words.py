"""Rules for cells that hold words: statuses, flags and names, and whether a row is a request."""

import re

from tuner.trace.record import REFUSED, Status
from tuner.trace.values import is_empty, words

MAX_NAME = 60
"""Characters of a name that has blanks."""

_CODE = re.compile(r"(?:http(?:/\d(?:\.\d)?)?[\s:]*)?([1-5]\d\d)(?:[\s:-].*)?")
"""A code of HTTP with words around it: ``HTTP/1.1 429 Too Many Requests``."""

_CODE_WITHIN = re.compile(r"\b(4\d\d|5\d\d)\b")
STATUSES: dict[str, Status] = {
    **dict.fromkeys(
        words(
            "ok success succeeded successful true completed complete done finished stop length "
            "passed end_turn eos yes status_code_ok status_code_unset unset max_tokens "
            "stop_sequence tool_calls tool_use incomplete default"
        ),
        "ok",
    ),
    **dict.fromkeys(
        words(
            "aborted abort cancelled canceled client_closed disconnected client_disconnected "
            "client_closed_request"
        ),
        "aborted",
    ),
    **dict.fromkeys(
        words(
            "rejected throttled rate_limited ratelimited overloaded unavailable "
            "too_many_requests service_unavailable resource_exhausted bad_request invalid_argument"
        ),
        "rejected",
    ),
    **dict.fromkeys(
        words(
            "error failed fail failure false timeout timed_out exception internal_error no "
            "internal internal_server_error status_code_error deadline_exceeded "
            "permission_denied not_found unauthenticated"
        ),
        "error",
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
    text = str(value).strip().lower().removesuffix(".0")
    if is_empty(value):
        return "ok"
    if text in ("0", "1") and (flag or text == "0"):
        return "ok" if flag == (text == "1") else "error"
    if code := _CODE.fullmatch(text):
        return status_of(int(code[1]))
    return STATUSES.get(re.sub(r"[\s-]+", "_", text.rpartition(".")[2]))


def error_in(value: object) -> Status:
    """Return what a column of errors says: nothing, or that there was one."""
    nothing = words("false 0 0.0 no ok")
    return "ok" if is_empty(value) or str(value).strip().lower() in nothing else "error"


def code_in(value: object) -> Status:
    """Return what a code of HTTP within a message means; an error where there is none."""
    code = _CODE_WITHIN.search(str(value)[:1000])
    return status_of(int(code[0])) if code else "error"


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
    text = str(value).strip("[]'\"")
    is_word = len(text) <= 32 and not is_empty(text) and re.fullmatch(r"[^\W_][\w-]*", text)
    return text if is_word else None


def name_in(value: object) -> str | None:
    """Return a name, which may be a number; nothing that is so long that it may be text."""
    name = "" if is_empty(value) or isinstance(value, bool | float) else str(value)
    return None if not name or (len(name) > MAX_NAME and " " in name) else name


LINKS = words(
    "chain agent tool retriever retrieval workflow task parser prompt guardrail reranker "
    "embedding evaluator"
)
"""Kinds of calls that stand above or beside a model's where each call is a row."""

_NO_GENERATION = tuple(
    words(
        "/embeddings /pooling /classify /score /rerank /tokenize /detokenize /models /health "
        "/healthz /ping /metrics /version /load /ready /livez /readyz /docs /openapi.json "
        "/favicon.ico"
    )
)


def generates(path: object) -> bool:
    """Return whether a request to this path, or of this first line, can generate tokens."""
    if is_empty(path):
        return True
    text = str(path)
    text = text.partition(" ")[2].partition(" ")[0] if " " in text else text
    bare = text.partition("?")[0].rstrip("/").lower()
    return bool(bare) and not bare.endswith(_NO_GENERATION)
