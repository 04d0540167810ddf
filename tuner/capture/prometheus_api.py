"""Samples out of a Prometheus, or what speaks like one, as they were scraped."""

import base64
import math
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tuner.capture.history import Labels, Samples
from tuner.errors import AnswerTooLongError, InputError, UsageError
from tuner.system.http import HttpRequest, problem_of, shown

CHUNK_S = 3600.0
TIMEOUT_S = 60.0
"""For the whole answer to one question, of an hour of history."""

LEAST_CHUNK_S = 60.0

MAX_ANSWER_BYTES = 64 * 2**20
"""Bytes of one answer: an hour of 170 engines that are scraped every 15 s. Reading it takes up to
twenty times as much. Where an hour is more than that, less is asked for at a time."""

MOST_SAMPLES = 30_000_000
"""Of all answers together, some 3 GB: a week of twelve such engines."""

MOST_BYTES = 2 * 2**30
"""Of all answers together: twice as much as those samples take."""

MOST_LABEL_BYTES = 256 * 2**20
"""Of all label sets together, as they are kept: a thousand times those of such engines."""

_LABEL_BYTES = 100
"""Bytes of a label beside its text."""

MOST_S = 1800.0
"""For all questions together."""

PREFIX = "vllm[:_]"
"""Some pipelines turn the colon of vLLM's names into an underscore."""

_PREFIX_LENGTH = len("vllm:")


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    """The Prometheus to ask, and for which time, in seconds since 1970."""

    url: str
    from_s: float
    to_s: float
    selector: str = ""
    """Label matchers, as between braces: ``job="vllm",model_name="m"``."""

    authorization: str = ""
    """The header of that name."""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


_decode = msgspec.json.Decoder(_Answer).decode


def without_login(url: str) -> tuple[str, str]:
    """Return the address without ``user:password@``, and these as a header of authorization.

    Raises UsageError, with no part of it that may be a secret, for what is no address.
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
            f"--url {shown(bare)}".rstrip() + f": {problem}",
            hint="Give the address of the Prometheus: --url http://prometheus:9090",
        )
    encoded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
    return bare, f"Basic {encoded}" if at else ""


@dataclass(slots=True)
class _Taken:
    """The time and memory that all answers have taken. Methods raise InputError for too much."""

    place: PrometheusQuery
    until_s: float
    """On the monotonic clock."""

    sample_count: int = 0
    answer_bytes: int = 0
    label_bytes: int = 0

    def left_s(self) -> float:
        """Return the time that is left."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise self._too_much(f"not all answers within {MOST_S:,.0f} s")
        return left_s

    def samples(self, more: int) -> None:
        self.sample_count += more
        if self.sample_count > MOST_SAMPLES:
            raise self._too_much(f"more than {MOST_SAMPLES:,} samples in that time")

    def answer(self, length: int) -> None:
        self.answer_bytes += length
        if self.answer_bytes > MOST_BYTES:
            raise self._too_much(f"answers more than {MOST_BYTES:,} bytes in all")

    def labels(self, more: Labels) -> None:
        self.label_bytes += sum(len(name) + len(text) + _LABEL_BYTES for name, text in more)
        if self.label_bytes > MOST_LABEL_BYTES:
            raise self._too_much(f"more than {MOST_LABEL_BYTES:,} bytes of labels in that time")

    def _too_much(self, what: str) -> InputError:
        return InputError(
            f"{self.place.url}: {what}",
            hint="Ask for less: --from and --to, or one engine with --selector.",
        )


def samples(place: PrometheusQuery, names: Sequence[str]) -> Samples:
    """Return all finite samples of these metrics, asked for by the hour.

    A range selector is used: the grid of a range query would skip and repeat scrapes, and hide
    restarts.

    Raises InputError where there is no Prometheus, or more than the memory should hold. Raises
    UsageError for a bad selector.
    """
    matchers = f'__name__=~"{PREFIX}(?:{"|".join(names)})"'
    if place.selector:
        matchers += f",{place.selector}"
    found: defaultdict[str, dict[Labels, dict[float, float]]] = defaultdict(dict)
    taken = _Taken(place, until_s=time.monotonic() + MOST_S)
    end_s, chunk_s = place.to_s, CHUNK_S
    while end_s > place.from_s:
        length_s = min(chunk_s, end_s - place.from_s)
        try:
            answer = _ask(place, f"{{{matchers}}}[{max(1, math.ceil(length_s))}s]", end_s, taken)
        except AnswerTooLongError:
            if chunk_s / 2 < LEAST_CHUNK_S:
                raise
            chunk_s /= 2
            continue
        taken.samples(len(answer) + sum(len(series.values) for series in answer))
        for series in answer:
            name = series.metric.pop("__name__", "")[_PREFIX_LENGTH:]
            labels = tuple(sorted(series.metric.items()))
            if labels not in found[name]:
                taken.labels(labels)
            values = found[name].setdefault(labels, {})
            for time_s, text in series.values:
                value = _number(text, place)
                if math.isfinite(value) and place.from_s <= time_s <= place.to_s:
                    values[time_s] = value
        end_s -= length_s
    return dict(found)


def _number(text: str, place: PrometheusQuery) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"{place.url}: not a Prometheus: a sample is {text[:40]!r}",
            hint="Give the address of the Prometheus itself.",
        ) from None


def _ask(place: PrometheusQuery, query: str, time_s: float, taken: _Taken) -> list[_Series]:
    from tuner.system import http_client  # noqa: PLC0415 - httpx is slow to load

    asked = HttpRequest(
        f"{place.url.rstrip('/')}/api/v1/query",
        most_bytes=MAX_ANSWER_BYTES,
        form={"query": query, "time": f"{time_s:.3f}"},
        authorization=place.authorization,
        reads_refusals=True,
    )
    answer = http_client.ask(asked, timeout_s=min(TIMEOUT_S, taken.left_s()))
    taken.answer(len(answer.content))
    if answer.status in {401, 403}:
        raise InputError(
            f"{place.url}: refused ({answer.status})",
            hint="Put a bearer token into TUNER_PROMETHEUS_TOKEN, or log in with "
            "http://USER:PASSWORD@HOST.",
        )
    return _result(place, answer.content)


def _result(place: PrometheusQuery, text: bytes) -> list[_Series]:
    try:
        answer = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(
            f"{place.url}: not a Prometheus: its /api/v1/query gives something else",
            hint="Give the address of the Prometheus, not of the server that it scrapes.",
        ) from None
    if answer.data is None or answer.status != "success":
        says = f"{place.url}: Prometheus says: {answer.error[:200]}"
        if place.selector and "parse error" in answer.error:
            raise UsageError(says, hint="Write --selector as label matchers: 'job=\"vllm\"'.")
        raise InputError(says, hint="Ask for less at a time with --from and --to.")
    return answer.data.result
