"""Prompts as text: words that are one token each, as the server's own tokenizer reads them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import EngineError
from tuner.system import http

COMMON = [
    "about", "after", "all", "also", "an", "and", "are", "back", "be", "because", "but", "by",
    "can", "come", "could", "day", "do", "even", "find", "first", "for", "from", "get", "give",
    "go", "good", "have", "he", "her", "here", "him", "how", "in", "into", "is", "it", "just",
    "know", "like", "look", "make", "man", "many", "me", "more", "new", "no", "not", "now", "of",
    "on", "one", "only", "or", "other", "our", "out", "people", "say", "see", "she", "so", "some",
]  # fmt: skip
"""Of these most are one token to most tokenizers."""

IDS = range(16, 1000)
"""Ids that every vocabulary has, and in which words are looked for where too few of these are."""

FEWEST = 32

_ANSWER_BYTES = 2**20
_ANSWER_S = 30.0
_OK = 200

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Sends JSON to a path of the server, and returns what it answers."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words that stand for token ids."""

    words: tuple[str, ...]

    def prompt(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """Return the fields of a request whose prompt is so many tokens; the same ids are the same
        text."""
        text = " ".join([self.words[one % len(self.words)] for one in token_ids])
        return {"prompt": text, "add_special_tokens": False}


def learnt(url: str, model: str, *, key: str | None = None) -> Words:
    """Return words that a server reads as one token each. Raises EngineError where it does not
    tell, or too few are."""

    def ask(path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON content
        question = http.HttpRequest(
            f"{url}{path}",
            _ANSWER_BYTES,
            body={"model": model, **body},
            authorization=f"Bearer {key}" if key else "",
            direct=True,  # as its completions are asked for
        )
        answer = http.ask(question, timeout_s=_ANSWER_S)
        if answer.status != _OK:
            raise _untold(f"{url}{path} answers {answer.status}")
        return json.loads(answer.content)

    try:
        return Words(tuple(words_of(ask)))
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _untold(f"{url} tells of no tokens ({type(problem).__name__})") from None


def words_of(ask: Ask) -> list[str]:
    """Return the words. Raises EngineError where too few are one token each."""
    found = _whole(COMMON, ask)
    if len(found) < FEWEST:
        text = str(ask("/detokenize", {"tokens": list(IDS)})["prompt"])
        others = dict.fromkeys(re.findall(r"[a-z]{2,}", text))
        found += _whole([one for one in others if one not in found], ask)
    if len(found) < FEWEST:
        raise _untold(f"only {len(found)} words are one token to this server's tokenizer")
    return found


def _whole(words: Sequence[str], ask: Ask) -> list[str]:
    """Return those of the words that are one token each: all at once, or else in halves."""
    if not words:
        return []
    asked = {"prompt": " ".join(words), "add_special_tokens": False, "return_token_strs": True}
    pieces = [str(one).strip("\u0120\u2581 ") for one in ask("/tokenize", asked)["token_strs"]]
    if pieces == list(words):
        return pieces
    if len(words) == 1:
        return []
    half = len(words) // 2
    return [*_whole(words[:half], ask), *_whole(words[half:], ask)]


def _untold(why: str) -> EngineError:
    return EngineError(f"--send text: {why}", hint="Send token ids: leave --send out.")
