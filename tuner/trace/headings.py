"""The meaning of a table's headings: one table of synonyms, by words and not by whole names. Pure.

``promptTokens``, ``usage.prompt_tokens``, ``Prompt Tokens`` and ``num_prompt_toks`` are the same
words, so a heading is cut into words first; what words mean stands in ``headings.toml``. Several
columns may fit one role: the one with the fewest words beside those that count is taken first.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from tuner.trace.record import TimeUnit
from tuner.trace.values import UNITS, words

Role = str
"""What a column is."""

_ROLES = (
    "timestamp end input_length output_length duration ttft queue "
    "cached_tokens cache_creation_tokens max_tokens status error session_id replica requests "
    "cache_hit kind"
)
ROLES: tuple[Role, ...] = (*_ROLES.split(),)
"""Roles that a column of any table can have. ``end`` is a time; ``duration``,
``ttft`` and ``queue`` are spans of time; ``requests`` is how many requests a row sums up;
``cache_hit`` is whether a gateway answered, and no server; ``kind`` is whether a row is a call of a
model, or a link that sums up several.

Formats whose columns are known have more: other fields of the record, and ``path`` and ``flags`` of
an access log."""

TIMES = words("timestamp end")
SPANS = words("duration ttft queue")
COUNTS = words("input_length output_length cached_tokens cache_creation_tokens max_tokens requests")
MAIN = words("timestamp input_length output_length")


class _Rule(msgspec.Struct, frozen=True):
    """When a heading has a role; see ``headings.toml``."""

    role: Role
    all: tuple[str, ...]
    none: str = ""
    beside: str = ""
    rank: int = 0
    weight: int = 1
    most: int = 99
    deep: bool = False
    stop: bool = False


_TABLE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())


@lru_cache(maxsize=256)
def word_set(text: str) -> frozenset[str]:
    """Return the words of a text of ``headings.toml``; ``@name`` stands for those of that name."""
    named = (word_set(_TABLE["words"][word[1:]]) for word in text.split() if word[0] == "@")
    return frozenset(word for word in text.split() if word[0] != "@").union(*named)


RULES = {scope: msgspec.convert(_TABLE[scope], list[_Rule]) for scope in ("count", "time")}
WHOLE: dict[Role, frozenset[str]] = {
    role: frozenset(" ".join(names.split()).split(", ")) for role, names in _TABLE["whole"].items()
}
VOCABULARY = frozenset(UNITS).union(
    *(word_set(f"@{name}") for name in _TABLE["words"]),
    *(name.split() for names in WHOLE.values() for name in names),
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_A_SECOND = re.compile(r"/\s*(?=s\b|sec)", re.IGNORECASE)
_IN_UNIT = re.compile(r"\bin (?=m?s\b|milli|sec|micro|nano)")  # latencyInMillis has no input
_WORD = re.compile(r"[a-zµ]+[0-9]?[a-z]*")
LONGEST_HEADING = 200

Meaning = tuple[Role, int, TimeUnit | None]
"""What a heading may mean, its rank (of two columns for one role the lower is taken), and of a time
the unit that it names."""


def role_of(name: str) -> tuple[Role | None, TimeUnit | None]:
    """Return the role that a name is, and the unit that it ends with; no role where it is none.

    >>> role_of("end"), role_of("duration_ms"), role_of("latency")
    (('end', None), ('duration', 'ms'), (None, None))
    """
    if name in ROLES:
        return name, None
    role, _, suffix = name.rpartition("_")
    return (role, UNITS[suffix]) if role in SPANS | TIMES and suffix in UNITS else (None, None)


def words_of(heading: str) -> list[str]:
    """Return the words of a heading in lower case, and nothing of what joins them.

    >>> words_of("usage.promptTokens (total)")
    ['usage', 'prompt', 'tokens', 'total']
    """
    spaced = _A_SECOND.sub(" per ", _CAMEL.sub(" ", heading[:LONGEST_HEADING])).lower()
    return _WORD.findall(_IN_UNIT.sub("", spaced.replace("gen_ai", " ").replace("e2_e", "e2e")))


@lru_cache(maxsize=1024)
def meanings(heading: str) -> tuple[Meaning, ...]:
    """Return all that a heading may mean; what its values are decides among them."""
    return tuple(_meanings(heading)) if len(heading) <= LONGEST_HEADING else ()


def _meanings(heading: str) -> Iterator[Meaning]:
    parts = heading.split(".")
    path = [result for part in parts if (result := words_of(part))]
    if not path:
        return
    leaf, above, tokens = (
        path[-1],
        [word for words_ in path[:-1] for word in words_],
        word_set("@tokens"),
    )
    says_nothing = word_set("@noise @counts @time").union(UNITS).issuperset(leaf)
    if path[1:] and (says_nothing or (tokens & {*path[-2]} and not tokens & {*leaf})):
        leaf = path[-2] + leaf  # tokens.input
    unit = next((UNITS[word] for word in reversed(leaf) if word in UNITS and len(leaf) > 1), None)
    plain = [word for word in leaf if word not in UNITS or len(leaf) == 1]
    name = " ".join(leaf[leaf[0] == "ai" and len(leaf) > 1 :])  # PostHog's $ai_model
    for role, names in WHOLE.items():
        if name in names and not (role == "replica" and "request" in parts[:-1]):
            yield role, len(path), None  # a request's host is the one that was asked
    depth = len(path) + 3 * bool({*above} & word_set("@not_a_count"))
    has = frozenset(plain)
    scopes: list[tuple[str, frozenset[str], frozenset[str]]] = [("count", has, has)]
    if plain and not has & word_set("@prompt") and (not has & tokens or has & {"first", "last"}):
        has -= tokens
        scopes.append(("time", has, has | {f"^{plain[0]}", "<time>" if unit else ""}))
    for scope, has, marks in scopes:
        for rule in RULES[scope]:
            beside = len(has - word_set("@noise") - word_set(rule.beside))
            is_met = beside <= rule.most and not marks & word_set(rule.none)
            if is_met and all(marks & word_set(each) for each in rule.all):
                rank = rule.rank + rule.weight * beside + depth * rule.deep
                yield rule.role, rank, unit if scope == "time" else None
                if rule.stop:
                    break


_PLAIN = re.compile(r"[A-Za-z0-9_ .()/%#@$-]{1,60}")


def in_words(heading: str) -> bool:
    """Whether a heading is made of known words alone, so that it can be nobody's text."""
    result = words_of(heading) if _PLAIN.fullmatch(heading) else []
    return 0 < len(result) <= 8 and VOCABULARY.issuperset(result)


def main_roles(headings: Iterable[str]) -> set[Role]:
    """Return which of the three main roles these headings may have."""
    roles = {role for heading in headings for role, *_ in meanings(heading)}
    if {"end", "duration"} <= roles:
        roles.add("timestamp")
    return roles & MAIN
