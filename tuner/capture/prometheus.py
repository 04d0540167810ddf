"""A trace that fits what a Prometheus stored of a vLLM server. It is synthetic, and says so.

Exact between any two scrapes: how many requests finished, how many tokens their prompts and outputs
had in all, and how many lay in each bucket. Exact at every scrape: how many were in flight. Drawn:
when between two scrapes a request arrived, where within its bucket a length lies, and which output
goes with which prompt.
"""

import base64
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.errors import AnswerTooLongError, InputError, TraceError, UsageError
from tuner.system import http
from tuner.trace.record import TraceHeader
from tuner.trace.trace import Trace
from tuner.trace.values import Floats, Ints, date_of

RUNNING, WAITING, FINISHED = "num_requests_running", "num_requests_waiting", "request_success_total"
INPUT, OUTPUT = "request_prompt_tokens", "request_generation_tokens"
COUNTERS = (FINISHED, *(f"{name}_{part}" for name in (INPUT, OUTPUT) for part in ("bucket", "sum")))
METRICS = (RUNNING, WAITING, *COUNTERS)

CHUNK_S, MOST_S = 900, 31 * 86_400
"""History that one query covers, and all of them."""

TIMEOUT_S = 60.0
"""Longest wait for one reply."""

MOST_BYTES = 128 * 2**20
"""Of all replies: some five million samples, a day of twenty engines every 15 s."""

GAP_SCRAPES = 5
"""Scrapes in a row that may be missing; of a longer gap nothing is known."""

MAX_REQUESTS, MAX_TOKENS = 1e7, 1e12
"""Of one engine: a damaged counter may ask for any number."""

TOKEN = "TUNER_PROMETHEUS_TOKEN"  # noqa: S105 - the name of the variable
"""Of a bearer token, or of a user and a password with a colon between."""

LESS = "Ask for less: --from and --to, or one engine: --selector 'instance=\"HOST:PORT\"'."

Samples = Mapping[str, Mapping[str, Mapping[float, float]]]
"""Metric without prefix → bucket or finish reason → seconds since 1970 → value."""


class Series(msgspec.Struct):
    """A series of a reply: (seconds since 1970, value)."""

    metric: dict[str, str]
    values: list[tuple[float, float]] = []


class Result(msgspec.Struct):
    """The part of a reply that holds the series."""

    result: list[Series]


class Reply(msgspec.Struct):
    """A reply of ``/api/v1/query``."""

    data: Result | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine at every scrape, and in the intervals between two scrapes."""

    model: str
    times_s: Floats
    scrape_s: float
    """The usual time from one scrape to the next."""

    in_flight: Floats
    restarted: NDArray[np.bool_]
    counted: Mapping[str, Floats]
    """Metric → requests, or tokens of a sum: [bucket or finish reason, interval]."""

    uppers: Mapping[str, Floats]
    """Metric → upper ends of its buckets, ascending, the last one infinite."""


def read(url: str, begin_s: float, end_s: float, selector: str, *, seed: int) -> Trace:
    """Return a trace of what was scraped between two times, in seconds since 1970.

    Raises InputError, TraceError, UsageError.
    """
    if not 0 < end_s - begin_s <= MOST_S:
        raise UsageError(
            "--from is not before --to, or by more than 31 days",
            hint="Write how long ago: --from 2h --to 1h",
        )
    known: dict[tuple[tuple[str, str], ...], dict[str, dict[str, dict[float, float]]]] = {}
    url = http.check_address(url, option="Prometheus")
    for series in _fetched(url, begin_s, end_s, selector):
        labels = series.metric
        name, reason = labels.pop("__name__", ""), labels.pop("finished_reason", "")
        part = labels.pop("le", reason)
        samples = known.setdefault(tuple(sorted(labels.items())), {}).setdefault(name[5:], {})
        samples.setdefault(part, {}).update(series.values)
    engines = [_engine(dict(key), known[key]) for key in sorted(known) if RUNNING in known[key]]
    models = sorted({engine.model for engine in engines})
    if len(models) != 1:
        raise InputError(
            f"{', '.join(models[:5]) or 'no model'}: not one model in that time of the Prometheus",
            hint="Check --from and --to, and choose one: --selector 'model_name=\"NAME\"'",
        )
    return _drawn(sorted(engines, key=lambda engine: float(engine.times_s[0])), seed)


def _fetched(url: str, from_s: float, to_s: float, selector: str) -> Iterator[Series]:
    """Yield the series of the metrics, by one query for each quarter of an hour.

    A range selector is used: the grid of a range query would skip and repeat scrapes, and hide
    restarts. Raises InputError.
    """
    login = os.environ.get(TOKEN, "")
    if login:
        encoded = base64.b64encode(login.encode()).decode()
        login = f"Basic {encoded}" if ":" in login else f"Bearer {login}"
    # Some pipelines turn the colon of vLLM's names into an underscore.
    matchers = f'{{__name__=~"vllm[:_](?:{"|".join(METRICS)})",{selector}}}'
    left_bytes = MOST_BYTES
    for end_s in np.arange(to_s, from_s, -CHUNK_S).tolist():
        length_s = max(1, math.floor(min(CHUNK_S, end_s - from_s)))
        request = http.HttpRequest(
            f"{url}/api/v1/query",
            most_bytes=left_bytes,
            form={"query": f"{matchers}[{length_s}s]", "time": f"{end_s:.3f}"},
            authorization=login,
            reads_refusals=True,
        )
        try:
            content = http.ask(request, timeout_s=TIMEOUT_S).content
            reply = msgspec.json.decode(content, type=Reply, strict=False)
        except AnswerTooLongError:
            raise InputError(f"{url}: more than {MOST_BYTES:,} bytes", hint=LESS) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InputError(
                f"{url}: not the address of a Prometheus, or it wants a login",
                hint=f"Put a bearer token, or USER:PASSWORD, into {TOKEN}.",
            ) from None
        if reply.data is None:
            raise InputError(
                f"{url}: Prometheus answers: {reply.error[:200]}",
                hint=f"Write --selector as label matchers: 'job=\"vllm\"'. {LESS}",
            )
        left_bytes -= len(content)
        yield from reply.data.result


def _engine(labels: Mapping[str, str], samples: Samples) -> Engine:
    """Return an engine. Raises InputError for gaps and for numbers that cannot be true."""
    name = labels.get("instance", "the engine")
    try:
        parts = {metric: samples[metric] for metric in METRICS}
        uppers = {}
        for length in (INPUT, OUTPUT):
            buckets = sorted(parts[f"{length}_bucket"].items(), key=lambda item: float(item[0]))
            parts[f"{length}_bucket"] = dict(buckets)
            uppers[length] = np.array([float(le) for le, _ in buckets])
            uppers[length].tolist().index(math.inf)  # raises ValueError where it is missing
    except (KeyError, ValueError) as problem:
        raise InputError(
            f"{name} lacks a metric of vLLM or a bucket: {problem}",
            hint="Scrape all of /metrics: a relabelling rule may drop some, or the label le.",
        ) from None
    # A bucket or reason appears when it first counts, so any of a metric's shows its scrapes.
    scrapes = [set[float]().union(*each.values()) for each in parts.values()]
    times_s = np.array(sorted(set.intersection(*scrapes)))
    if len(times_s) < 2:
        raise InputError(f"{name} has fewer than two scrapes", hint="Widen --from and --to.")
    spacing_s = np.diff(times_s)
    scrape_s = float(np.median(spacing_s))
    gaps = np.flatnonzero(spacing_s > GAP_SCRAPES * scrape_s)
    if len(gaps):
        begin_s, end_s = times_s[gaps[-1] : gaps[-1] + 2]
        raise InputError(
            f"no scrapes of {name} for {end_s - begin_s:.0f} s from {begin_s:.0f}",
            hint=f"Take what follows: --from {end_s:.0f}",
        )
    values = {
        metric: np.array([[at.get(t_s, 0.0) for t_s in times_s.tolist()] for at in each.values()])
        for metric, each in parts.items()
    }
    steps = {metric: np.diff(values[metric]) for metric in COUNTERS}
    restarted = np.concatenate(list(steps.values())).min(axis=0) < 0
    counted = {  # from 0, after a restart
        metric: np.where(restarted, values[metric][:, 1:], step) for metric, step in steps.items()
    }
    in_flight = values[RUNNING].sum(axis=0) + values[WAITING].sum(axis=0)
    for metric, rows in [*counted.items(), ("in flight", in_flight[None])]:
        most = MAX_TOKENS if metric.endswith("_sum") else MAX_REQUESTS
        if not 0 <= rows.min() <= rows.sum(axis=1).max() <= most:  # which holds for no NaN
            raise InputError(f"{name}: {metric} cannot be true, or is above {most:g}", hint=LESS)
    model = labels.get("model_name", "")
    return Engine(model, times_s, scrape_s, in_flight, restarted, counted, uppers)


def _whole(values: Floats) -> Ints:
    return np.rint(values).clip(0).astype(np.int64)


def _drawn(engines: list[Engine], seed: int) -> Trace:
    """Return the synthetic trace. Raises TraceError where there was no request."""
    rng = np.random.default_rng(seed)
    until_s: list[float] = []
    replicas = []
    for engine in engines:  # one that took another's place is the same replica
        free = (place for place, end_s in enumerate(until_s) if end_s < engine.times_s[0])
        replica = next(free, len(until_s))
        until_s[replica : replica + 1] = [float(engine.times_s[-1])]
        replicas.append(replica)
    drawn = [_requests(engine, rng) for engine in engines]
    times_s, inputs, outputs = map(np.concatenate, zip(*drawn, strict=True))
    if not len(times_s):
        raise TraceError(
            "no request was in flight or finished in that time",
            hint="Choose a busier time with --from and --to.",
        )
    order = np.argsort(times_s)
    origin_s = float(times_s[order[0]])
    columns = {"input_length": inputs, "output_length": outputs}
    if len(until_s) > 1:
        columns["replica"] = np.repeat(replicas, [len(arrivals_s) for arrivals_s, *_ in drawn])
    table = pa.table(
        {
            "timestamp": np.round((times_s[order] - origin_s) * 1000, 3),
            **{key: pa.array(column[order], pa.int32()) for key, column in columns.items()},
        }
    )
    header = TraceHeader(
        source="prometheus",
        model=engines[0].model or None,
        time_origin=date_of(origin_s * 1000),
        rows_read=len(table),
        rows_kept=len(table),
        # vLLM does not count requests whose client left
        missing=("aborts", "errors", "ends", "hash_ids", "session_id", "n", "max_tokens"),
        notes=(
            f"synthetic: drawn from Prometheus history, seed {seed}",
            f"scraped every {engines[0].scrape_s:g} s: bursts within are unknown",
        ),
    )
    return Trace(header, table)


def _requests(engine: Engine, rng: np.random.Generator) -> tuple[Floats, Ints, Ints]:
    """Return arrival, prompt and output of each request, in order of arrival.

    Between two scrapes as many arrive as finish, and as many more as are then in flight. The k-th
    to arrive is taken for the k-th to finish.
    """
    finished, in_flight = _whole(engine.counted[FINISHED].sum(axis=0)), _whole(engine.in_flight)
    before = np.where(engine.restarted, 0, in_flight[:-1])
    # Clients that leave, and metrics that are read a moment apart, make some counts negative:
    # these are taken from what follows.
    total = np.cumsum(finished + in_flight[1:] - before)
    counts = np.diff(np.maximum.accumulate(np.maximum(0, total)), prepend=0)
    starts_s, ends_s = engine.times_s[:-1], engine.times_s[1:]
    # When those in flight at the first scrape arrived is not known.
    earlier_s = starts_s[0] - rng.uniform(0, engine.scrape_s, in_flight[0])
    later_s = rng.uniform(np.repeat(starts_s, counts), np.repeat(ends_s, counts))
    times_s = np.sort(np.concatenate((earlier_s, later_s)))
    inputs, outputs = _lengths(engine, INPUT, rng), _lengths(engine, OUTPUT, rng)
    known = min(len(times_s), len(inputs), len(outputs))
    others = rng.integers(0, known, len(times_s) - known) if known else np.zeros(0, np.int64)
    chosen = np.concatenate((np.arange(known), others))
    return times_s[: len(chosen)], inputs[chosen], outputs[chosen]


def _lengths(engine: Engine, name: str, rng: np.random.Generator) -> Ints:
    """Return a length for every request that finished, in the order of the scrapes.

    Those of an interval are uniform in their buckets at first, and then all moved by one share
    towards the low or high ends, until they add up to the interval's tokens.
    """
    uppers = engine.uppers[name]
    lows = np.floor(np.concatenate(([0.0], uppers[:-1]))) + 1  # a bucket holds (low, up]
    highs = np.maximum(lows, np.floor(uppers))
    upto, sums = (engine.counted[f"{name}_{part}"] for part in ("bucket", "sum"))
    every = _whole(np.diff(upto, axis=0, prepend=0.0)).T
    result = [np.zeros(0, np.int64)]
    for counts, tokens in zip(every, sums.sum(axis=0), strict=True):
        highs[-1] = max(2 * lows[-1], np.ceil(tokens / max(1, counts[-1])))
        low, high = np.repeat(lows, counts), np.repeat(highs, counts)
        drawn = rng.uniform(low, high)
        ends = low if drawn.sum() > tokens else high
        room = (ends - drawn).sum()
        drawn += (ends - drawn) * (min(1.0, (tokens - drawn.sum()) / room) if room else 0.0)
        # What rounding takes from one it gives to the next.
        result.append(
            rng.permutation(
                _whole(np.clip(np.diff(np.rint(np.cumsum(drawn)), prepend=0.0), low, high))
            )
        )
    return np.concatenate(result)
