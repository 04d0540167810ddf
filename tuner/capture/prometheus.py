"""A trace that fits what a Prometheus stored of a vLLM server. It is synthetic, and says so.

Exact between any two scrapes: how many requests finished and for which reason, how many tokens
their prompts and outputs had in all, and how many lay in each bucket. Exact at every scrape: how
many were in flight. Drawn: when between two scrapes a request arrived, where within its bucket a
length lies, and which output goes with which prompt.
"""

import base64
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.errors import InputError, TraceError, UsageError
from tuner.system import http
from tuner.trace.encode import TYPES
from tuner.trace.record import TraceHeader
from tuner.trace.trace import Trace, sorted_by_arrival
from tuner.trace.values import date_of, parse, written_ms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Labels = tuple[tuple[str, str], ...]
"""Labels of an engine, without those that part its own series."""

Samples = Mapping[Labels, Mapping[str, Mapping[str, Floats]]]
"""Engine → metric without prefix → bucket or finish reason → rows of seconds since 1970, value."""

RUNNING, WAITING, SUCCESS = "num_requests_running", "num_requests_waiting", "request_success_total"
INPUT, OUTPUT = "request_prompt_tokens", "request_generation_tokens"
METRICS = (
    *(RUNNING, WAITING, SUCCESS),
    *(f"{name}_{part}" for name in (INPUT, OUTPUT) for part in ("bucket", "sum")),
)

CHUNK_S = 900.0
"""History that one query covers."""

TIMEOUT_S = 60.0
"""Longest wait for one reply."""

MAX_ANSWER_BYTES, MOST_BYTES = 64 * 2**20, 512 * 2**20
"""Of one reply, and of all: some 20 million samples, five days of twelve engines every 15 s."""

GAP_SCRAPES = 5
"""Scrapes in a row that may be missing; of a longer gap nothing is known."""

MAX_REQUESTS, MAX_TOKENS = 10_000_000, 1e15
"""A day of a hundred requests a second: a damaged counter may ask for any number."""

MISSING = ("aborts", "errors", "ends", "hash_ids", "session_id", "n", "max_tokens")
"""Facts that no metric holds. vLLM does not count requests whose client left."""

STATUSES = {"abort": "aborted", "error": "error"}
CLOCKS_APART_S = 3600.0
"""How far the clock of the Prometheus may be ahead of ours."""

TOKEN = "TUNER_PROMETHEUS_TOKEN"  # noqa: S105 - the name of the variable
"""Of a bearer token, or of a user and a password with a colon between."""


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

    def refuse(self, what: str, hint: str) -> InputError:
        return InputError(f"{self.url}: {what}", hint=hint)


def source(url: str, from_: str | None, to: str | None, selector: str) -> Source:
    """Return what the user names. Raises UsageError."""
    now_s = datetime.now(UTC).timestamp()
    from_s, to_s = (
        _moment_s(text, now_s, option)
        for text, option in ((from_ or "1h", "--from"), (to or "now", "--to"))
    )
    if not from_s < to_s:
        raise UsageError(
            f"--from {from_} is not before --to {to}", hint="Write how long ago: --from 2h --to 1h"
        )
    bare, login = http.check_address(url, option="Prometheus"), os.environ.get(TOKEN, "")
    if login:
        encoded = base64.b64encode(login.encode()).decode()
        login = f"Basic {encoded}" if ":" in login else f"Bearer {login}"
    return Source(bare, from_s, to_s, selector, login)


def _moment_s(text: str, now_s: float, option: str) -> float:
    """Read ``now``, ``2h`` (ago), a date, or seconds since 1970; none of the future."""
    date, ago_ms = parse(text), 0.0 if text == "now" else written_ms(text)
    if re.fullmatch(r"\d{9,11}(\.\d*)?", text):
        time_s = float(text)
    elif date is not None:
        time_s = date[0] / 1000
    else:
        time_s = -1.0 if ago_ms is None else now_s - ago_ms / 1000
    if not 0 <= time_s <= now_s + CLOCKS_APART_S:
        raise UsageError(
            f"{option} {text!r}: not a time that can have been recorded",
            hint="Write now, how long ago (2h), a date in UTC, or seconds since 1970.",
        )
    return time_s


def read(source: Source, *, seed: int = 0) -> Trace:
    """Return a trace of what was scraped. Raises InputError, TraceError, UsageError."""
    return draw(engines_of(fetch(source), source), seed)


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
    """Return all finite samples of the metrics, one query for each quarter of an hour.

    A range selector is used: the grid of a range query would skip and repeat scrapes, and hide
    restarts. Raises InputError where there is no Prometheus, or too much; UsageError for a bad
    selector.
    """
    # Some pipelines turn the colon of vLLM's names into an underscore.
    matchers = f'__name__=~"vllm[:_](?:{"|".join(METRICS)})"'
    if source.selector:
        matchers += f",{source.selector}"
    samples: dict[Labels, dict[str, dict[str, Floats]]] = {}
    end_s, left_bytes = source.to_s, MOST_BYTES
    while end_s > source.from_s:
        length_s = min(CHUNK_S, end_s - source.from_s)
        content = _ask(source, f"{{{matchers}}}[{max(1, math.ceil(length_s))}s]", end_s)
        left_bytes -= len(content)
        if left_bytes < 0:
            raise source.refuse(f"answers with more than {MOST_BYTES:,} bytes", _LESS)
        for series in _decode(source, content):
            metric = series.metric
            name, reason = metric.pop("__name__", "")[5:], metric.pop("finished_reason", "")
            part, engine = metric.pop("le", reason), tuple(sorted(metric.items()))
            rows = samples.setdefault(engine, {}).setdefault(name, {})
            rows[part] = np.concatenate((rows.get(part, np.zeros((0, 2))), _finite(series, source)))
        end_s -= length_s
    return samples


_LESS = "Ask for less: --from and --to, or one engine with --selector."
_ADDRESS = "Give the address of the Prometheus, not of the server that it scrapes."


def _ask(source: Source, query: str, at_s: float) -> bytes:
    request = http.HttpRequest(
        f"{source.url.rstrip('/')}/api/v1/query",
        most_bytes=MAX_ANSWER_BYTES,
        form={"query": query, "time": f"{at_s:.3f}"},
        authorization=source.authorization,
        reads_refusals=True,
    )
    answer = http.ask(request, timeout_s=TIMEOUT_S)
    if answer.status in {401, 403}:
        raise source.refuse(
            f"refused ({answer.status})",
            f"Put a bearer token, or USER:PASSWORD, into {TOKEN}.",
        )
    return answer.content


def _decode(source: Source, content: bytes) -> list[_Series]:
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise source.refuse("not a Prometheus: /api/v1/query is another page", _ADDRESS) from None
    if answer.data is not None and answer.status == "success":
        return answer.data.result
    message = f"Prometheus answers: {answer.error[:200]}"
    if source.selector and "parse error" in answer.error:
        hint = "Write --selector as label matchers: 'job=\"vllm\"'."
        raise UsageError(f"{source.url}: {message}", hint=hint)
    raise source.refuse(message, _LESS)


def _finite(series: _Series, source: Source) -> Floats:
    try:
        rows = np.array([(at_s, float(text)) for at_s, text in series.values]).reshape(-1, 2)
    except ValueError:
        raise source.refuse("not a Prometheus: a sample is not a number", _ADDRESS) from None
    in_time = (source.from_s <= rows[:, 0]) & (rows[:, 0] <= source.to_s)
    chosen: Floats = rows[in_time & np.isfinite(rows[:, 1])]
    return chosen


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, scrape by scrape; what it counted, in the intervals between two scrapes."""

    labels: Mapping[str, str]
    times_s: Floats
    in_flight: Floats
    counted: Mapping[str, Mapping[str, Floats]]
    """Metric → bucket or finish reason → requests, or tokens of a sum."""
    restarted: NDArray[np.bool_]

    @property
    def scrape_s(self) -> float:
        """The usual time from one scrape to the next."""
        return float(np.median(np.diff(self.times_s)))


def engines_of(samples: Samples, source: Source) -> list[Engine]:
    """Return every engine in what was scraped. Raises InputError where there is none to use."""
    known = {labels: result for labels, result in sorted(samples.items()) if RUNNING in result}
    if not known:
        raise source.refuse(
            f"no vllm:{RUNNING} in that time",
            "Check --from, --to and --selector, and that /metrics of the server is scraped.",
        )
    models = sorted({dict(labels).get("model_name", "") for labels in known})
    if len(models) > 1:
        matcher = shlex.quote(f"model_name={json.dumps(models[0])}")
        names = ", ".join(models[:5])
        raise source.refuse(f"{len(models)} models: {names}", f"Choose one: --selector {matcher}")
    engines = [_engine(dict(labels), result, source) for labels, result in known.items()]
    for engine in engines:
        _check(engine, source)
    return engines


def _engine(
    labels: dict[str, str], series: Mapping[str, Mapping[str, Floats]], source: Source
) -> Engine:
    if absent := [name for name in METRICS if name not in series]:
        raise source.refuse(
            f"{labels.get('instance', 'the engine')} has no vllm:{absent[0]}",
            "Scrape all of /metrics: a relabelling rule may drop it.",
        )
    # A bucket or reason appears when it first counts, so any of a metric's shows its scrapes.
    scrapes = [np.concatenate([rows[:, 0] for rows in series[name].values()]) for name in METRICS]
    times_s = reduce(np.intersect1d, scrapes)
    if len(times_s) < 2:
        raise source.refuse("fewer than two scrapes in that time", "Widen --from and --to.")

    def at_scrapes(name: str) -> dict[str, Floats]:
        result = {}
        for part, rows in series[name].items():
            result[part] = values = np.zeros(len(times_s))
            _, places, chosen = np.intersect1d(times_s, rows[:, 0], return_indices=True)
            values[places] = rows[chosen, 1]
        return result

    gauges = [scrape for name in (RUNNING, WAITING) for scrape in at_scrapes(name).values()]
    counters = {name: at_scrapes(name) for name in METRICS if name not in (RUNNING, WAITING)}
    steps = [np.diff(part) for parts in counters.values() for part in parts.values()]
    restarted = np.any([step < 0 for step in steps], axis=0)
    counted = {  # from 0, after a restart
        name: {part: np.where(restarted, each[1:], np.diff(each)) for part, each in parts.items()}
        for name, parts in counters.items()
    }
    return Engine(labels, times_s, np.sum(gauges, axis=0), counted, restarted)


def _check(engine: Engine, source: Source) -> None:
    """Raise InputError for buckets and numbers that cannot be true, and for gaps in the scrapes."""
    for name in (INPUT, OUTPUT):
        bounds = sorted(engine.counted[f"{name}_bucket"])
        are_numbers = all(re.fullmatch(r"[\d.]+(e[+-]?\d+)?|\+Inf", bound) for bound in bounds)
        if len(bounds) < 2 or "+Inf" not in bounds or not are_numbers:
            raise source.refuse(
                f"the buckets of vllm:{name} are {', '.join(bounds)[:100]}",
                "vLLM's last bucket is +Inf: keep the label le as it is.",
            )
    for name, parts in [*engine.counted.items(), ("in flight", {"": engine.in_flight})]:
        most = MAX_TOKENS if name.endswith("_sum") else MAX_REQUESTS
        counts = np.array([*parts.values()])
        if counts.min() < 0 or counts.sum(axis=1).max() > most:
            raise source.refuse(
                f"{name}: below zero, or more than {MAX_REQUESTS:,} requests in that time", _LESS
            )
    spacing_s = np.where(engine.restarted, 0, np.diff(engine.times_s))
    gaps = np.flatnonzero(spacing_s > GAP_SCRAPES * engine.scrape_s)
    if len(gaps):
        worst = int(np.argmax(spacing_s))
        raise source.refuse(
            f"no scrapes of {engine.labels.get('instance', 'the engine')} for "
            f"{spacing_s[worst]:.0f} s from {engine.times_s[worst]:.0f}",
            f"Take what follows the last gap: --from {engine.times_s[gaps[-1] + 1]:.0f}",
        )


def draw(engines: Sequence[Engine], seed: int) -> Trace:
    """Return the synthetic trace. Raises TraceError where there was no request."""
    rng = np.random.default_rng(seed)
    drawn = [_requests(engine, rng) for engine in engines]
    columns = {name: np.concatenate([each[name] for each in drawn]) for name in drawn[0]}
    if not len(columns["timestamp"]):
        raise TraceError(
            "no request was in flight or finished in that time",
            hint="Choose a busier time with --from and --to.",
        )
    reasons = columns["finish_reason"]
    statuses = [STATUSES.get(reason, "ok") for reason in reasons.tolist()]
    columns["status"] = pa.array(statuses, pa.string())
    columns["finish_reason"] = pa.array(reasons, pa.string(), mask=reasons == "")
    replicas = _replicas(engines)
    if max(replicas) > 0:
        columns["replica"] = np.repeat(replicas, [len(each["timestamp"]) for each in drawn])
    unfinished = int(columns.pop("is_open").sum())
    held = {name: pa.array(column, TYPES[name]) for name, column in columns.items()}
    table, origin_ms = sorted_by_arrival(pa.table(held), absolute=True)
    scrape_s = max(engine.scrape_s for engine in engines)
    header = TraceHeader(
        source="prometheus",
        model=engines[0].labels.get("model_name"),
        time_origin=date_of(origin_ms),
        rows_read=len(table),
        rows_kept=len(table),
        missing=MISSING,
        notes=(
            f"synthetic: drawn from Prometheus history, seed {seed}",
            f"scraped every {scrape_s:g} s: bursts within are unknown",
            f"{unfinished} requests were in flight at the end and have other requests' lengths",
        ),
    )
    return Trace(header, table)


def _requests(engine: Engine, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return the requests in order of arrival, and which were in flight at the last scrape.

    Between two scrapes as many arrive as finish, and as many more as are then in flight. The k-th
    to arrive is taken for the k-th to finish.
    """
    by_reason = engine.counted[SUCCESS]
    finished = np.rint(np.stack(list(by_reason.values()), axis=1)).astype(np.int64)
    in_flight = np.rint(engine.in_flight).astype(np.int64)
    before = np.where(engine.restarted, 0, in_flight[:-1])
    # Clients that leave, and metrics that are read a moment apart, make some counts negative:
    # these are taken from what follows.
    total = np.cumsum(finished.sum(axis=1) + in_flight[1:] - before)
    counts = np.diff(np.maximum.accumulate(np.maximum(0, total)), prepend=0)
    starts_s, ends_s = engine.times_s[:-1].copy(), engine.times_s[1:]
    # Nobody arrives at a server that is down: what it has served since came after its start.
    down = engine.restarted & (ends_s - starts_s > 2 * engine.scrape_s)
    starts_s[down] = ends_s[down] - engine.scrape_s
    # Those in flight at the first scrape arrived, by Little's law, within the last count / rate.
    rate = finished.sum() / (engine.times_s[-1] - engine.times_s[0])
    before_s = in_flight[0] / rate if rate > 0 else engine.scrape_s
    earlier_s = engine.times_s[0] - rng.uniform(0, before_s, in_flight[0])
    later_s = rng.uniform(np.repeat(starts_s, counts), np.repeat(ends_s, counts))
    times_s = np.sort(np.concatenate((earlier_s, later_s)))
    inputs, outputs = (_lengths(engine, name, rng) for name in (INPUT, OUTPUT))
    names = np.array(list(by_reason))
    reasons = np.concatenate([rng.permutation(np.repeat(names, some)) for some in finished])
    known = min(len(times_s), len(inputs), len(outputs), len(reasons))
    others = rng.integers(0, known, len(times_s) - known) if known else np.zeros(0, np.int64)
    chosen = np.concatenate((np.arange(known), others))
    return {
        "timestamp": np.round(times_s[: len(chosen)] * 1000, 3),
        "input_length": inputs[chosen],
        "output_length": outputs[chosen],
        "finish_reason": reasons[chosen],
        "is_open": np.arange(len(chosen)) >= known,
    }


def _lengths(engine: Engine, name: str, rng: np.random.Generator) -> Ints:
    """Return a length for every request that finished, in the order of the scrapes."""
    upto = {float(bound): each for bound, each in engine.counted[f"{name}_bucket"].items()}
    uppers = np.array(sorted(upto))
    counted = np.diff([upto[bound] for bound in uppers], axis=0, prepend=0.0)
    counts = np.maximum(0, np.rint(counted)).astype(np.int64).T
    (totals,) = engine.counted[f"{name}_sum"].values()
    lows = np.floor(np.concatenate(([0.0], uppers[:-1]))) + 1  # a bucket holds (lower, upper]
    result = [np.zeros(0, np.int64)]
    for some, total in zip(counts, totals, strict=True):
        highs = np.maximum(lows, np.floor(uppers))
        highs[-1] = max(2 * lows[-1], np.ceil(total / max(1, some[-1])))
        result.append(_with_total(np.repeat(lows, some), np.repeat(highs, some), total, rng))
    return np.concatenate(result)


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
    return rng.permutation(whole.astype(np.int64))


def _replicas(engines: Sequence[Engine]) -> list[int]:
    """Return a replica for each engine: one that took another's place gets the other's number."""
    until_s: list[float] = []
    result = [0] * len(engines)
    for place in sorted(range(len(engines)), key=lambda item: float(engines[item].times_s[0])):
        begin_s, end_s = (float(engines[place].times_s[edge]) for edge in (0, -1))
        free = [number for number, last_s in enumerate(until_s) if last_s < begin_s]
        result[place] = free[0] if free else len(until_s)
        until_s[result[place] : result[place] + 1] = [end_s]
    return result
