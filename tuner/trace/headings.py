"""The meaning of a table's headings: one table of synonyms, by words and not by whole names. Pure.

``promptTokens``, ``usage.prompt_tokens``, ``Prompt Tokens`` and ``num_prompt_toks`` are the same
words, so a heading is cut into words first; what words mean stands in ``headings.toml``. Several
columns may fit one role: the one with the fewest words beside those that count is taken first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from tuner.trace.values import UNITS, Unit, words

Role = str
"""What a column is."""

_ROLES = (
    "timestamp end first_token input_length output_length total_length duration ttft queue "
    "cached_tokens cache_creation_tokens max_tokens status error finish_reason stream session_id "
    "model replica requests num_images cache_hit kind"
)
ROLES: tuple[Role, ...] = (*_ROLES.split(),)
"""Roles that a column of any table can have. ``end`` and ``first_token`` are times; ``duration``,
``ttft`` and ``queue`` are spans of time; ``requests`` is how many requests a row sums up;
``cache_hit`` is whether a gateway answered, and no server; ``kind`` is whether a row is a call of a
model, or a link that sums up several.

Formats whose columns are known have more: other fields of the record, and ``path`` and ``flags`` of
an access log, ``error_code`` within a message, ``reason`` why a row is no request, ``links``."""


TIMES = words("timestamp end first_token")
SPANS = words("duration ttft queue")


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
def _set(text: str) -> frozenset[str]:
    """Return the words of a text of a rule."""
    named = (_set(_TABLE["words"][word[1:]]) for word in text.split() if word[0] == "@")
    return frozenset(word for word in text.split() if word[0] != "@").union(*named)


_COUNT_RULES, _TIME_RULES = (msgspec.convert(_TABLE[key], list[_Rule]) for key in ("count", "time"))
WHOLE: dict[Role, frozenset[str]] = {
    role: frozenset(" ".join(names.split()).split(", ")) for role, names in _TABLE["whole"].items()
}
PROMPT, TOKENS, COUNTS, TIME, BEGIN, NOISE, NOT_A_COUNT = (
    _set(f"@{name}")
    for name in ("prompt", "tokens", "counts", "time", "begin", "noise", "not_a_count")
)
WRITTEN_RANK = 4
"""Of the time when a row was written: taken where nothing says when the request came."""

MAIN = words("timestamp input_length output_length")

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_A_SECOND = re.compile(r"/\s*(?=s\b|sec)", re.IGNORECASE)
_WORD = re.compile(r"[a-zµ]+[0-9]?[a-z]*|\d+")
LONGEST_HEADING = 200
MONGODB = frozenset(
    {"$date", "$numberLong", "$numberInt", "$numberDouble", "$numberDecimal", "$oid"}
)
"""Names of types, which stand around values."""

VOCABULARY = frozenset(UNITS).union(
    *map(_set, (f"@{name}" for name in _TABLE["words"])),
    *(name.split() for names in WHOLE.values() for name in names),
)
_PARTS = frozenset(
    {word for word in VOCABULARY if len(word) > 3} | {"id", "ts", "ms", "end", "max"}
)
"""Words that may stand in another without a mark between: shorter ones are in words by chance."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that a heading may mean."""

    role: Role
    rank: int
    """0 fits best; of two columns for one role the lower is taken."""

    unit: Unit | None = None
    """Of a time, where the heading names it."""


def role_of(name: str) -> tuple[Role | None, Unit | None]:
    """Return the role that a name is, and the unit that it ends with; no role where it is none.

    >>> role_of("end"), role_of("duration_ms"), role_of("latency")
    (('end', None), ('duration', 'ms'), (None, None))
    """
    if name in ROLES:
        return name, None
    role, _, suffix = name.rpartition("_")
    return (role, UNITS[suffix]) if role in SPANS | TIMES and suffix in UNITS else (None, None)


def unit_of(heading: str) -> Unit | None:
    """Return a time's unit by its heading; else that which it ends with: ``offset_s``."""
    *others, last = words_of(heading) or [""]
    at_the_end = UNITS.get(last) if others else None
    return next((one.unit for one in meanings(heading) if one.unit), at_the_end)


def words_of(heading: str) -> list[str]:
    """Return the words of a heading in lower case, and nothing of what joins them.

    >>> words_of("usage.promptTokens (total)")
    ['usage', 'prompt', 'tokens', 'total']
    """
    spaced = _A_SECOND.sub(" per ", _CAMEL.sub(" ", heading[:LONGEST_HEADING]))
    found = _WORD.findall(spaced.lower().replace("gen_ai", " ").replace("e2_e", "e2e"))
    return [part for word in found if not word.isdecimal() for part in _parts(word) or [word]]


def _parts(word: str) -> list[str]:
    """Return the words that some databases write as one, in lower case; nothing where it is none.

    >>> _parts("inputtokencount"), _parts("modelid"), _parts("started"), _parts("contextual")
    (['input', 'token', 'count'], ['model', 'id'], ['started'], [])
    """
    if word in VOCABULARY:
        return [word]
    for end in range(len(word) - 1, 1, -1):
        if word[:end] in _PARTS and (rest := _parts(word[end:])) and rest[0] in _PARTS:
            return [word[:end], *rest]
    return []


def meanings(heading: str) -> Iterable[Meaning]:
    """Return all that a heading may mean; what its values are decides among them."""
    return _kept(heading) if len(heading) <= LONGEST_HEADING else _meanings(heading)


@lru_cache(maxsize=1024)
def _kept(heading: str) -> tuple[Meaning, ...]:
    """Return the meanings of a heading, and keep them: it is asked about time and again."""
    return tuple(_meanings(heading))


def _meanings(heading: str) -> Iterator[Meaning]:
    parts = [part for part in heading.split(".") if part not in MONGODB]
    path = [words for part in parts if (words := words_of(part))]
    if not path:
        return
    leaf = path[-1]
    if len(path) > 1 and (
        not set(leaf) - NOISE - COUNTS - TIME - UNITS.keys()
        or (TOKENS & set(path[-2]) and not TOKENS & set(leaf))
    ):
        leaf = path[-2] + leaf  # timings.prompt.n, tokens.input
    behind = [*leaf[1:], ""]  # in latencyInMillis, "in" is no prompt
    both = zip(leaf, behind, strict=True)
    leaf = [one for one, after in both if one != "in" or after not in UNITS]
    unit = next((UNITS[word] for word in reversed(leaf) if word in UNITS and len(leaf) > 1), None)
    words = [word for word in leaf if word not in UNITS or len(leaf) == 1]
    has = frozenset(words)
    name = " ".join(leaf[leaf[0] == "ai" and len(leaf) > 1 :])  # PostHog's $ai_model
    for role, names in WHOLE.items():
        if name in names and not (role == "replica" and "request" in parts[:-1]):  # the asked host
            yield Meaning(role, len(path))
    above = {word for words in path[:-1] for word in words}
    depth = len(path) + 3 * bool(above & NOT_A_COUNT)
    yield from _by_rules(_COUNT_RULES, has, has, depth, None)
    if words and not has & PROMPT and (not has & TOKENS or has & {"first", "last"}):
        marks = {f"^{words[0]}", "<time>" if unit else ""}
        yield from _by_rules(_TIME_RULES, has - TOKENS, has - TOKENS | marks, 0, unit)


def _by_rules(
    rules: Iterable[_Rule],
    has: frozenset[str],
    marks: frozenset[str],
    depth: int,
    unit: Unit | None,
) -> Iterator[Meaning]:
    """Yield what words mean by rules, which see ``marks`` as well."""
    for rule in rules:
        beside = len(has - NOISE - _set(rule.beside))
        is_met = beside <= rule.most and not marks & _set(rule.none)
        if is_met and all(marks & _set(one) for one in rule.all):
            rank = rule.rank + rule.weight * beside + depth * rule.deep
            yield Meaning(rule.role, rank, unit)
            if rule.stop:
                return


_PLAIN = re.compile(r"[A-Za-z0-9_ .()/%#@$-]+")


def in_words(heading: str) -> bool:
    """Whether a heading is made of known words alone, so that it can be nobody's text."""
    words = words_of(heading) if _PLAIN.fullmatch(heading) else []
    return 0 < len(words) <= 8 and len(heading) <= 60 and VOCABULARY.issuperset(words)


def main_roles(headings: Iterable[str]) -> set[Role]:
    """Return which of the three main roles these headings may have."""
    roles = {one.role for heading in headings for one in meanings(heading)}
    if {"end", "duration"} <= roles:
        roles.add("timestamp")
    return roles & MAIN
