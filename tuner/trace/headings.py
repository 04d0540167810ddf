"""The meaning of a table's headings: one table of synonyms, by words and not by whole names. Pure.

``promptTokens``, ``usage.prompt_tokens``, ``Prompt Tokens`` and ``num_prompt_toks`` are the same
words, so a heading is cut into words first; what a word may mean stands in the sets below. Several
columns may fit one role: the one with the fewest words beside those that count is taken first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

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
``cache_hit`` is whether a gateway answered, and no server;
``kind`` is whether a row is a call of a model, or a link that sums up several.

Formats whose columns are known have more: other fields of the record, and ``path`` and ``flags`` of
an access log, ``error_code`` within a message, ``reason`` why a row is no request, ``links``."""


TIMES = words("timestamp end first_token")
SPANS = words("duration ttft queue")

# Prompts and outputs, by words that need no "tokens" beside them, and by words that do.
PROMPT = words("prompt prompts input inputs in prefill isl")
PROMPT_IF_TOKENS = PROMPT | words("context request req query question sent ingress evaluated")
OUTPUT = words(
    "completion completions compl output outputs out generated generation generate gen decode "
    "decoded candidates predicted sampled osl eval"
)
OUTPUT_IF_TOKENS = OUTPUT | words("response resp reply answer result received egress")
TOKENS = words("token tokens tok toks tkn tkns")
COUNTS = TOKENS | words("length lengths len size count n num")
NOT_A_COUNT = words(
    "cost costs price usd eur dollars credits spend rate per reasoning thinking audio image "
    "images video text tool accepted rejected prediction max maximum min limit budget remaining "
    "id ids hash char chars character characters bytes words file url uncached k thousand "
    "thousands million millions time latency duration avg average mean median throughput window "
    "cumulative embedding details billed truncated left"
)
"""Words that make of a count of tokens something else, or a part of one."""

CACHED = words("cached cache hit hits")
MISSED = words("miss misses missed")
CREATED_IN_CACHE = words("creation write written create")

# Times. A word for a beginning or an end, or one that only says that it is a time.
TIME = words(
    "time timestamp timestamps ts date datetime at stamp t asctime messagetime tstamp dt epoch unix"
)
BEGIN = words(
    "start started starts begin began begun arrival arrived arrive received submit submitted "
    "requested request sent send"
)
WRITTEN = words(
    "created create creation logged log event recorded inserted generated ingested observed "
    "event entry receive"
)
"""Words for the time when a row was written: taken where nothing says when the request came."""

WRITTEN_RANK = 4

END = words(
    "end ended ends finish finished complete completed completion done stop stopped response "
    "responded closed last"
)
AMBIGUOUS = words("request response completion generation total")
"""``response_time`` is when it came, or how long it took: its values tell."""

SPAN = words(
    "duration latency elapsed took taken e2e e2el runtime rt lat processing execution inference "
    "service wall lasted dur durations latencies timings"
)
NOT_A_TIME = words(
    "total generation updated update modified expires expiry deleted processed ingestion "
    "exported zone timezone birth ttl paid"
)
GAPS = words("inter delta deltas gap gaps diff difference")
"""Words for a gap since the row above. It is no time, though it may be called an arrival."""

NOT_A_SPAN = words(
    "tpot itl inter per avg mean first ttft queue queued wait waiting load prefill decode "
    "network overhead budget timeout limit max min cached tokenization scheduling connect dns "
    "minute minutes mins hour hours hrs days"
)

NOISE = words(
    "usage llm ai num number no nr n count counts total sum of the attributes metadata body "
    "data fields value unix epoch utc gmt request req native log api source iso invocation de "
    "du des del la d et y und der"
)
"""Words that say nothing more of what a column is."""

WHOLE: dict[Role, frozenset[str]] = {
    role: frozenset(names.split(", "))
    for role, names in {
        "end": "time local, time iso8",
        "status": (
            "status, status code, http status, http status code, response code, code, http code, "
            "state, outcome, response status, result, success, succeeded, is success, ok"
        ),
        "error": (
            "error, errors, is error, has error, error type, error code, exception, error "
            "message, failed, failure"
        ),
        "finish_reason": "finish reason, stop reason, finished reason",
        "stream": "stream, streaming, streamed, is stream, is streaming",
        "session_id": (
            "session, session id, conversation, conversation id, chat id, thread id, dialog id, "
            "dialogue id"
        ),
        "model": (
            "model, model name, model id, model group, model used, llm, llm model, request model, "
            "response model, provider model, deployment, deployment name"
        ),
        "replica": (
            "replica, instance, instance id, host, hostname, pod, pod name, backend, node, "
            "upstream, upstream addr, upstream host, worker, server, server id"
        ),
        "cache_hit": (
            "cache hit, cached, is cached, cache status, from cache, served from cache, cached "
            "response, cache result"
        ),
        "kind": "kind, run type, span kind, openinference span kind",
        "num_images": "num images, images, image count, n images",
        "input_length": "req units",
        "output_length": "res units",
        "requests": (
            "requests, request count, num requests, n requests, requests count, number of "
            "requests, num model requests, total requests, calls, call count, api requests, "
            "successful requests, count, invocations, invocation count"
        ),
    }.items()
}
"""Roles that a few whole headings name, in their order; the words of the last one come last."""

MAIN = words("timestamp input_length output_length")

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_A_SECOND = re.compile(r"/\s*(?=s\b|sec)", re.IGNORECASE)
_WORD = re.compile(r"[a-zµ]+[0-9]?[a-z]*|\d+")
LONGEST_HEADING = 200
MONGODB = frozenset(
    {"$date", "$numberLong", "$numberInt", "$numberDouble", "$numberDecimal", "$oid"}
)
"""Names of types, which stand around values."""

VOCABULARY = frozenset().union(
    *(PROMPT_IF_TOKENS, OUTPUT_IF_TOKENS, COUNTS, NOT_A_COUNT, CACHED, CREATED_IN_CACHE, TIME),
    *(BEGIN, WRITTEN, END, SPAN, NOT_A_TIME, GAPS, NOT_A_SPAN, NOISE, UNITS),
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
    behind = [*leaf[1:], ""]
    leaf = [one for one, after in zip(leaf, behind, strict=True) if not _says_unit(one, after)]
    unit = next((UNITS[word] for word in reversed(leaf) if word in UNITS and len(leaf) > 1), None)
    words = [word for word in leaf if word not in UNITS or len(leaf) == 1]
    has = set(words)
    yield from _whole(leaf, len(path), is_of_request="request" in parts[:-1])
    above = {word for words in path[:-1] for word in words}
    yield from _counts(has, len(path) + 3 * bool(above & NOT_A_COUNT))
    if not has & PROMPT and (not has & TOKENS or has & {"first", "last"}):
        yield from _times(words, has - TOKENS, unit)


def _says_unit(word: str, after: str) -> bool:
    """Whether "in" stands before a unit, and means no prompt: ``latencyInMillis``."""
    return word == "in" and after in UNITS


def _whole(words: list[str], depth: int, *, is_of_request: bool) -> Iterator[Meaning]:
    name = " ".join(words[words[0] == "ai" and len(words) > 1 :])  # PostHog's $ai_model
    for role, names in WHOLE.items():
        if name in names and not (role == "replica" and is_of_request):  # the host that is asked
            yield Meaning(role, depth)


def _counts(has: set[str], depth: int) -> Iterator[Meaning]:
    prompt, output = has & PROMPT_IF_TOKENS, has & OUTPUT_IF_TOKENS
    if has & {"max", "maximum"} and has & TOKENS and not has & PROMPT:
        yield Meaning("max_tokens", len(has))
    if has & CACHED and has & TOKENS and not (output or has & MISSED):
        role: Role = "cache_creation_tokens" if has & CREATED_IN_CACHE else "cached_tokens"
        yield Meaning(role, len(has) + depth)
        return
    if has & NOT_A_COUNT or has & CACHED:
        return
    rank = depth - ("native" in has)
    if not has & TOKENS:
        prompt, output = has & PROMPT, has & OUTPUT
        rank += 1 if has & COUNTS or has & {"isl", "osl"} else 4
    if prompt and output:
        prompt, output = prompt & PROMPT, output & OUTPUT  # request_completion_tokens
    if prompt and output and "eval" in output:
        output = set()  # prompt_eval_count beside eval_count
    beside = has - NOISE - COUNTS - prompt - output
    if prompt and not output:
        yield Meaning("input_length", rank + 2 * len(beside))
    elif output and not prompt:
        yield Meaning("output_length", rank + 2 * len(beside))
    elif has & TOKENS and not (beside - {"all", "tokens"}):
        yield Meaning("total_length", depth)


def _times(  # noqa: C901 - one meaning after another
    words: list[str], has: set[str], unit: Unit | None
) -> Iterator[Meaning]:
    rest = has - NOISE
    is_time = bool(has & TIME) or unit is not None
    first = bool(has & {"first", "ttft", "ttfb", "ttfc"}) or (
        bool(has & {"completion", "generation"}) and bool(has & {"start", "started"})
    )
    if first:
        is_span = bool(has & {"ttft", "ttfb", "ttfc", "latency", "duration"}) or "to" in has
        yield Meaning("ttft" if is_span else "first_token", len(rest), unit)
        if not is_span:
            yield Meaning("ttft", len(rest) + 1, unit)
        return
    if "to" in has and has & END:  # time_to_last_token, msToFinish
        yield Meaning("duration", 1, unit)
        return
    if has & {"queue", "queued", "queueing", "wait", "waiting"}:
        yield Meaning("queue", len(rest), unit)
        return
    if has & SPAN and not has & NOT_A_SPAN:
        yield Meaning("duration", len(rest - SPAN - TIME) + (not has & {"total", "e2e"}), unit)
        return
    if is_time and has & AMBIGUOUS and not has & NOT_A_SPAN:
        rank = 1 if "generation" in has or has == {"total", "time"} else 4
        yield Meaning("duration", rank + len(rest - AMBIGUOUS - TIME), unit)
    rank = len(rest - TIME - BEGIN - END - WRITTEN)
    if rank > 1 or has & (NOT_A_TIME | GAPS):
        return
    if has & END:
        if is_time or rest <= {"end", "ended", "finish", "finished", "stop", "stopped"}:
            yield Meaning("end", rank + (0 if has & {"end", "ended", "finished"} else 1), unit)
    elif has & (BEGIN - {"request"}) and (is_time or rest <= BEGIN):
        yield Meaning("timestamp", rank, unit)
    elif has & WRITTEN and (is_time or words[0] in WRITTEN):
        yield Meaning("timestamp", WRITTEN_RANK + rank, unit)
    elif has & TIME:
        yield Meaning("timestamp", 2 + 2 * rank, unit)


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
