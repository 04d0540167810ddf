"""A trace that fits what a Prometheus stored of a vLLM server. It is synthetic, and says so.

Exact between any two scrapes: how many requests finished and for which reason, how many tokens
their prompts and outputs had in all, and how many lay in each bucket. Exact at every scrape: how
many were in flight. Drawn: when between two scrapes a request arrived, where within its bucket a
length lies, and which output goes with which prompt.
"""

import base64
import json
import math
import shlex
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.errors import AnswerTooLongError, InputError, TraceError, UsageError
from tuner.system.http import HttpRequest, problem_of, shown
from tuner.trace.trace import Status, Trace, TraceHeader, TraceRequest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Labels = tuple[tuple[str, str], ...]
Series = tuple[Floats, Floats]
"""Seconds since 1970, and the values then."""

Samples = Mapping[str, Mapping[Labels, Series]]
"""Metric without its prefix → label set → series."""

RUNNING, WAITING, SUCCESS = "num_requests_running", "num_requests_waiting", "request_success_total"
INPUT, OUTPUT = "request_prompt_tokens", "request_generation_tokens"
METRICS = (
    *(RUNNING, WAITING, SUCCESS),
    *(f"{name}_{part}" for name in (INPUT, OUTPUT) for part in ("bucket", "sum")),
)

CHUNK_S, LEAST_CHUNK_S = 3600.0, 60.0
"""History that one question asks for, and the least where an answer is too long."""

TIMEOUT_S, MOST_S = 60.0, 1800.0
"""Longest wait for one answer, and for all of them."""

MAX_ANSWER_BYTES, MOST_BYTES = 64 * 2**20, 512 * 2**20
"""Of one answer, and of all: some 20 million samples, five days of twelve engines every 15 s."""

MOST_SERIES = 100_000
"""A thousand times those of an engine."""

GAP_SCRAPES = 5
"""Scrapes in a row that may be missing; of a longer gap nothing is known."""

MAX_REQUESTS, MAX_TOKENS = 10_000_000, 1e15
"""A day of a hundred requests a second: a damaged counter may ask for any number."""

MISSING = ("aborts", "errors", "ends", "hash_ids", "session_id", "n", "max_tokens")
"""Facts that no metric holds. vLLM does not count requests whose client left."""

STATUS: Mapping[str, Status] = {"abort": "aborted", "error": "error"}


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus, and the time to ask for in seconds since 1970."""

    url: str
    from_s: float
    to_s: float
    selector: str = ""
    """Label matchers, as between braces: ``job="vllm",model_name="m"``."""

    authorization: str = ""
    """The header of that name."""


def read(source: Source, *, seed: int = 0) -> Trace:
    """Return a trace of what was scraped. Raises InputError, TraceError, UsageError."""
    engines = engines_of(fetch(source), source.url)
    for engine in engines:
        engine.check(source.url)
    return draw(engines, seed)


def without_login(url: str) -> tuple[str, str]:
    """Return the address without ``user:password@``, and these as a header of authorization.

    Raises UsageError, with no part of it that may be a secret, for what is not an address.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        login, at, host = parts.netloc.rpartition("@")
        bare = urllib.parse.urlunsplit(parts._replace(netloc=host))
        problem = problem_of(bare)
    except ValueError:
        login = at = bare = ""
        problem = "no address"
    if problem is not None:
        raise UsageError(
            f"{shown(bare)}: {problem}".removeprefix(": "),
            hint="Give the address of the Prometheus: http://prometheus:9090",
        )
    encoded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
    return bare, f"Basic {encoded}" if at else ""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


def fetch(source: Source) -> Samples:
    """Return all finite samples of the metrics, asked for by the hour.

    A range selector is used: the grid of a range query would skip and repeat scrapes, and hide
    restarts. Raises InputError where there is no Prometheus, or too much; UsageError for a bad
    selector.
    """
    # Some pipelines turn the colon of vLLM's names into an underscore.
    matchers = f'__name__=~"vllm[:_](?:{"|".join(METRICS)})"'
    if source.selector:
        matchers += f",{source.selector}"
    parts: defaultdict[str, dict[Labels, list[Series]]] = defaultdict(dict)
    until_s, left_bytes, count = time.monotonic() + MOST_S, MOST_BYTES, 0
    end_s, chunk_s = source.to_s, CHUNK_S
    while end_s > source.from_s:
        length_s = min(chunk_s, end_s - source.from_s)
        query = f"{{{matchers}}}[{max(1, math.ceil(length_s))}s]"
        try:
            content = _ask(source, query, end_s, until_s - time.monotonic())
        except AnswerTooLongError:
            if chunk_s / 2 < LEAST_CHUNK_S:
                raise
            chunk_s /= 2
            continue
        left_bytes -= len(content)
        for series in _decode(source, content):
            name = series.metric.pop("__name__", "")[len("vllm:") :]
            labels = tuple(sorted(series.metric.items()))
            count += labels not in parts[name]
            parts[name].setdefault(labels, []).append(_finite(series.values, source))
        if left_bytes < 0 or count > MOST_SERIES:
            much = f"{MOST_SERIES:,} series" if left_bytes >= 0 else f"{MOST_BYTES:,} bytes"
            raise _too_much(source, f"answers with more than {much}")
        end_s -= length_s
    return {
        name: {labels: _joined(found) for labels, found in series.items()}
        for name, series in parts.items()
    }


def _ask(source: Source, query: str, at_s: float, left_s: float) -> bytes:
    from tuner.system import http_client  # noqa: PLC0415 - slow to load

    if left_s <= 0:
        raise _too_much(source, f"not all answers within {MOST_S:,.0f} s")
    request = HttpRequest(
        f"{source.url.rstrip('/')}/api/v1/query",
        most_bytes=MAX_ANSWER_BYTES,
        form={"query": query, "time": f"{at_s:.3f}"},
        authorization=source.authorization,
        reads_refusals=True,
    )
    answer = http_client.ask(request, timeout_s=min(TIMEOUT_S, left_s))
    if answer.status in {401, 403}:
        raise InputError(
            f"{source.url}: refused ({answer.status})",
            hint="Put a bearer token into TUNER_PROMETHEUS_TOKEN, or log in with "
            "http://USER:PASSWORD@HOST.",
        )
    return answer.content


def _decode(source: Source, content: bytes) -> list[_Series]:
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _no_prometheus(source, "its /api/v1/query gives something else") from None
    if answer.data is None or answer.status != "success":
        message = f"{source.url}: Prometheus answers: {answer.error[:200]}"
        if source.selector and "parse error" in answer.error:
            raise UsageError(message, hint="Write --selector as label matchers: 'job=\"vllm\"'.")
        raise InputError(message, hint="Ask for less at a time with --from and --to.")
    return answer.data.result


def _finite(values: Sequence[tuple[float, str]], source: Source) -> Series:
    try:
        pairs = np.array([(at_s, float(text)) for at_s, text in values]).reshape(-1, 2)
    except ValueError:
        raise _no_prometheus(source, "a sample is not a number") from None
    asked = (source.from_s <= pairs[:, 0]) & (pairs[:, 0] <= source.to_s)
    pairs = pairs[asked & np.isfinite(pairs[:, 1])]
    return pairs[:, 0], pairs[:, 1]


def _joined(parts: Sequence[Series]) -> Series:
    times_s, places = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
    return times_s, np.concatenate([part[1] for part in parts])[places]


def _too_much(source: Source, what: str) -> InputError:
    hint = "Ask for less: --from and --to, or one engine with --selector."
    return InputError(f"{source.url}: {what}", hint=hint)


def _no_prometheus(source: Source, why: str) -> InputError:
    hint = "Give the address of the Prometheus, not of the server that it scrapes."
    return InputError(f"{source.url}: not a Prometheus: {why}", hint=hint)


@dataclass(frozen=True, slots=True)
class Histogram:
    """What a histogram counted between each two scrapes."""

    uppers: Floats
    """Ends of the buckets, each of which holds (lower, upper]."""

    counts: Floats
    """Intervals by buckets."""

    totals: Floats


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, scrape by scrape; what is counted has one entry less, for each interval."""

    labels: Mapping[str, str]
    times_s: Floats
    in_flight: Floats
    restarted: NDArray[np.bool_]
    finished: Mapping[str, Floats]
    """Finish reason → requests."""

    input_length: Histogram
    output_length: Histogram

    @property
    def scrape_s(self) -> float:
        """The usual time from one scrape to the next."""
        return float(np.median(np.diff(self.times_s)))

    def check(self, place: str) -> None:
        """Raise InputError for gaps while the server ran, and for numbers that cannot be true."""
        lengths = (self.input_length, self.output_length)
        counts = [*self.finished.values(), *(one.counts for one in lengths)]
        if min(float(one.min()) for one in (self.in_flight, *counts)) < 0:
            raise InputError(
                f"{place}: a counter of requests is below zero",
                hint="Is another program's metric called vllm:?",
            )
        requests = max(float(self.in_flight.max()), *(float(one.sum()) for one in counts))
        if requests > MAX_REQUESTS or max(float(one.totals.max()) for one in lengths) > MAX_TOKENS:
            raise InputError(
                f"{place}: {requests:,.0f} requests in that time, more than can be drawn here "
                f"({MAX_REQUESTS:,})",
                hint="Ask for less with --from and --to.",
            )
        spacing_s = np.diff(self.times_s)
        gaps = np.flatnonzero((spacing_s > GAP_SCRAPES * self.scrape_s) & ~self.restarted)
        if not len(gaps):
            return
        edges = [0, *(gaps + 1).tolist(), len(self.times_s)]
        parts = [(start, end - 1) for start, end in pairwise(edges)]
        first, last = max(parts, key=lambda part: self.times_s[part[1]] - self.times_s[part[0]])
        worst = int(gaps[np.argmax(spacing_s[gaps])])
        raise InputError(
            f"{place}: no scrapes of {self.labels.get('instance', 'the engine')} for "
            f"{spacing_s[worst]:.0f} s from {self.times_s[worst]:.0f}",
            hint="Take a part without gaps: "
            f"--from {self.times_s[first]:.0f} --to {self.times_s[last]:.0f}",
        )


def engines_of(samples: Samples, place: str) -> list[Engine]:
    """Return every engine in what was scraped. Raises InputError where there is none to use."""
    found: defaultdict[Labels, dict[str, dict[Labels, Series]]] = defaultdict(dict)
    for name, series in samples.items():
        for labels, one in series.items():
            engine = tuple(pair for pair in labels if pair[0] not in {"le", "finished_reason"})
            found[engine].setdefault(name, {})[labels] = one
    known = {labels: series for labels, series in sorted(found.items()) if RUNNING in series}
    if not known:
        raise InputError(
            f"{place}: no vllm:{RUNNING} in that time",
            hint="Check --from, --to and --selector, and that /metrics of the server is scraped.",
        )
    models = sorted({dict(labels).get("model_name", "") for labels in known})
    if len(models) > 1:
        raise InputError(
            f"{place}: {len(models)} models: {', '.join(models[:5])}",
            hint=f"Choose one: --selector {shlex.quote(f'model_name={json.dumps(models[0])}')}",
        )
    return [_engine(dict(labels), series, place) for labels, series in known.items()]


def _engine(
    labels: dict[str, str], series: Mapping[str, Mapping[Labels, Series]], place: str
) -> Engine:
    for name in METRICS:
        if name not in series:
            raise InputError(
                f"{place}: {labels.get('instance', 'the engine')} has no vllm:{name}",
                hint="Scrape all of /metrics: a relabelling rule may drop it.",
            )
    times_s = np.array([])
    for name in METRICS:  # a label set appears when it first counts: any of a metric's will do
        seen = np.unique(np.concatenate([one[0] for one in series[name].values()]))
        times_s = seen if name == METRICS[0] else np.intersect1d(times_s, seen)
    if len(times_s) < 2:
        raise InputError(
            f"{place}: fewer than two scrapes in that time", hint="Widen --from and --to."
        )

    def by(name: str, label: str = "") -> dict[str, Floats]:
        added: dict[str, Floats] = {}
        for of, (at_s, values) in series[name].items():
            total = added.setdefault(dict(of).get(label, ""), np.zeros(len(times_s)))
            _, places, chosen = np.intersect1d(times_s, at_s, return_indices=True)
            total[places] += values[chosen]
        return added

    finished = by(SUCCESS, "finished_reason")
    buckets = {name: _buckets(by(f"{name}_bucket", "le"), name, place) for name in (INPUT, OUTPUT)}
    counters = [*finished.values(), *(stacked[:, -1] for _, stacked in buckets.values())]
    restarted = np.any([np.diff(counter) < 0 for counter in counters], axis=0)

    def grown(counter: Floats) -> Floats:
        """Return what came in each interval; a server that restarted counts from 0."""
        after = restarted if counter.ndim == 1 else restarted[:, None]
        return np.where(after, counter[1:], np.diff(counter, axis=0))

    def lengths(name: str) -> Histogram:
        uppers, stacked = buckets[name]
        counts = np.maximum(0, np.rint(np.diff(grown(stacked), axis=1, prepend=0.0)))
        return Histogram(uppers, counts, grown(by(f"{name}_sum")[""]))

    return Engine(
        labels=labels,
        times_s=times_s,
        in_flight=by(RUNNING)[""] + by(WAITING)[""],
        restarted=restarted,
        finished={reason: np.rint(grown(counter)) for reason, counter in finished.items()},
        input_length=lengths(INPUT),
        output_length=lengths(OUTPUT),
    )


def _buckets(by_bound: Mapping[str, Floats], name: str, place: str) -> tuple[Floats, Floats]:
    """Return the bounds of a histogram, and its cumulative counts by scrapes and bounds."""
    try:
        counts = dict(sorted((float(bound), values) for bound, values in by_bound.items()))
    except ValueError:
        counts = {}
    uppers = np.array(list(counts))
    if len(uppers) < 2 or not uppers[0] >= 0 or not math.isinf(uppers[-1]):
        raise InputError(
            f"{place}: the buckets of vllm:{name} are {', '.join(sorted(by_bound))[:100]}",
            hint="vLLM's last bucket is endless: keep the label le as it is.",
        )
    return uppers, np.stack(list(counts.values()), axis=1)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Requests of one engine, in order of arrival."""

    times_s: Floats
    input_length: Ints
    output_length: Ints
    reasons: list[str]
    unfinished: int
    """In flight at the last scrape: their lengths are those of other requests."""


def draw(engines: Sequence[Engine], seed: int) -> Trace:
    """Return the synthetic trace. Raises TraceError where there was no request."""
    rng = np.random.default_rng(seed)
    drawn = [_requests(engine, rng) for engine in engines]
    firsts = [float(one.times_s[0]) for one in drawn if len(one.times_s)]
    if not firsts:
        raise TraceError(
            "no request was in flight or finished in that time",
            hint="Choose a busier time with --from and --to.",
        )
    replicas = _replicas(engines)
    rows = sorted(
        (round(float(one.times_s[row]) - min(firsts), 6), engine, row)
        for engine, one in enumerate(drawn)
        for row in range(len(one.times_s))
    )
    requests = [
        TraceRequest(
            row=place,
            arrival_s=arrival_s,
            input_length=int(drawn[engine].input_length[row]),
            output_length=int(drawn[engine].output_length[row]),
            status=STATUS.get(drawn[engine].reasons[row], "ok"),
            finish_reason=drawn[engine].reasons[row] or None,
            replica=replicas[engine] if max(replicas) > 0 else None,
        )
        for place, (arrival_s, engine, row) in enumerate(rows)
    ]
    scrape_s = max(engine.scrape_s for engine in engines)
    unfinished = sum(one.unfinished for one in drawn)
    header = TraceHeader(
        source="prometheus",
        model=engines[0].labels.get("model_name"),
        time_origin=datetime.fromtimestamp(min(firsts), UTC).isoformat(),
        time_resolution_ms=round(scrape_s * 1000, 3),
        replicas=max(replicas) + 1,
        rows_read=len(requests),
        rows_kept=len(requests),
        missing=MISSING,
        notes=(
            f"synthetic: drawn from Prometheus history, seed {seed}",
            f"scraped every {scrape_s:g} s: bursts within are unknown",
            f"{unfinished} requests were in flight at the end and have other requests' lengths",
        ),
    )
    return Trace.of(header, requests)


def _requests(engine: Engine, rng: np.random.Generator) -> _Drawn:
    """Return requests that arrive and finish as this engine's did.

    Between two scrapes as many arrive as finish, and as many more as are then in flight. The k-th
    to arrive is taken for the k-th to finish.
    """
    finished = np.sum(list(engine.finished.values()), axis=0).astype(np.int64)
    in_flight = np.rint(engine.in_flight).astype(np.int64)
    counts = finished + in_flight[1:] - np.where(engine.restarted, 0, in_flight[:-1])
    # Clients that leave, and metrics that are read a moment apart, make some negative: these are
    # taken from what follows.
    counts = np.diff(np.maximum.accumulate(np.maximum(0, np.cumsum(counts))), prepend=0)
    starts_s, ends_s = engine.times_s[:-1].copy(), engine.times_s[1:]
    # Nobody arrives at a server that is down: what it has served since came after its start.
    down = engine.restarted & (ends_s - starts_s > 2 * engine.scrape_s)
    starts_s[down] = ends_s[down] - engine.scrape_s
    # Those in flight at the first scrape arrived, by Little's law, within the last count / rate.
    rate = finished.sum() / (engine.times_s[-1] - engine.times_s[0])
    before_s = in_flight[0] / rate if rate > 0 else engine.scrape_s
    earlier_s = engine.times_s[0] - rng.uniform(0, before_s, in_flight[0])
    spread = rng.uniform(np.repeat(starts_s, counts), np.repeat(ends_s, counts))
    times_s = np.sort(np.concatenate((earlier_s, spread)))
    inputs, outputs = (_lengths(one, rng) for one in (engine.input_length, engine.output_length))
    reasons = _reasons(engine, rng)
    known = min(len(times_s), len(inputs), len(outputs), len(reasons))
    others = rng.integers(0, known, len(times_s) - known) if known else np.zeros(0, np.int64)
    chosen = np.concatenate((np.arange(known), others))
    return _Drawn(
        times_s=times_s[: len(chosen)],
        input_length=inputs[chosen],
        output_length=outputs[chosen],
        reasons=[reasons[place] for place in chosen.tolist()],
        unfinished=len(others),
    )


def _reasons(engine: Engine, rng: np.random.Generator) -> list[str]:
    """Return the finish reasons in the order of the scrapes, shuffled within each interval."""
    names = list(engine.finished)
    table = np.stack([engine.finished[name] for name in names], axis=1).astype(np.int64)
    return [
        names[place]
        for counts in table
        for place in rng.permutation(np.repeat(np.arange(len(names)), counts)).tolist()
    ]


def _lengths(histogram: Histogram, rng: np.random.Generator) -> Ints:
    """Return a length for every request that finished, in the order of the scrapes."""
    lows = np.maximum(1, np.floor(np.concatenate(([0.0], histogram.uppers[:-1]))) + 1)
    found = [np.zeros(0, np.int64)]
    for counts, total in zip(histogram.counts.astype(np.int64), histogram.totals, strict=True):
        bucket = np.repeat(np.arange(len(counts)), counts)
        if len(bucket):
            low = lows[bucket]
            high = _highs(low, np.floor(histogram.uppers[bucket]), float(total))
            found.append(_with_total(low, high, float(total), rng))
    return np.concatenate(found)


def _highs(low: Floats, high: Floats, total: float) -> Floats:
    """Give the endless last bucket an end: twice its begin, or what the total needs."""
    endless = np.isinf(high)
    finite: Floats = np.maximum(low, np.where(endless, 2 * low, high))
    short = total - finite.sum()
    finite[endless] += np.ceil(max(0.0, short) / max(1, int(endless.sum())))
    return finite


def _with_total(low: Floats, high: Floats, total: float, rng: np.random.Generator) -> Ints:
    """Return whole numbers in [low, high] that add up to ``total``, as near as they can.

    They are uniform at first, and then all moved by one share towards their low or high ends.
    """
    drawn = rng.uniform(low, high)
    ends = low if drawn.sum() > total else high
    room = (ends - drawn).sum()
    share = min(1.0, (total - drawn.sum()) / room) if room else 0.0
    drawn += share * (ends - drawn)
    # What rounding takes from one it gives to the next.
    whole = np.clip(np.diff(np.rint(np.cumsum(drawn)), prepend=0.0), low, high)
    return whole.astype(np.int64)[rng.permutation(len(whole))]


def _replicas(engines: Sequence[Engine]) -> list[int]:
    """Return a replica for each engine: one that took another's place gets the other's number."""
    until_s: list[float] = []
    found = [0] * len(engines)
    for place in sorted(range(len(engines)), key=lambda one: float(engines[one].times_s[0])):
        begin_s, end_s = (float(engines[place].times_s[edge]) for edge in (0, -1))
        free = [number for number, last_s in enumerate(until_s) if last_s < begin_s]
        found[place] = free[0] if free else len(until_s)
        until_s[found[place] : found[place] + 1] = [end_s]
    return found
