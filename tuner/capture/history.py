"""The history of vLLM's engines in Prometheus, scrape by scrape. Pure."""

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InputError

Floats = NDArray[np.float64]
Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[Labels, Mapping[float, float]]]
"""Metric without prefix → label set → seconds since 1970 → value."""

RUNNING, WAITING = "num_requests_running", "num_requests_waiting"
SWAPPED = "num_requests_swapped"
"""Requests of vLLM's first engine that had left the device: in flight, but not running."""

SUCCESS = "request_success_total"
INPUT_LENGTH, OUTPUT_LENGTH = "request_prompt_tokens", "request_generation_tokens"
HISTOGRAMS = (INPUT_LENGTH, OUTPUT_LENGTH)
METRICS = (
    *(RUNNING, WAITING, SWAPPED, SUCCESS),
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum")),
)
"""All that is asked for; today's vLLM and its first engine have the same names for these."""

NOT_OF_THE_ENGINE = frozenset({"le", "finished_reason"})

GAP = 5
"""Scrapes in a row that may be missing; of a longer gap nothing is known."""


@dataclass(frozen=True, slots=True)
class HistogramSeries:
    """A histogram at every scrape, since the server's start."""

    bounds: tuple[float, ...]
    counts: Floats
    """Scrapes by bounds: values up to each bound."""

    sums: Floats


@dataclass(frozen=True, slots=True)
class EngineHistory:
    """One engine; all arrays have one entry a scrape."""

    labels: Mapping[str, str]
    times_s: Floats
    running: Floats
    waiting: Floats
    finished: Mapping[str, Floats]
    """Finish reason → requests since the server's start."""

    input_length: HistogramSeries
    output_length: HistogramSeries

    @property
    def scrape_s(self) -> float:
        """The usual time from one scrape to the next."""
        return float(np.median(np.diff(self.times_s))) if len(self.times_s) > 1 else 0.0


def engines(samples: Samples, *, place: str) -> tuple[EngineHistory, ...]:
    """Return every engine in what was scraped. Raises InputError where there is none to use."""
    found: defaultdict[Labels, dict[str, list[tuple[Labels, Mapping[float, float]]]]]
    found = defaultdict(dict)
    for name, series in samples.items():
        for labels, values in series.items():
            engine = tuple(one for one in labels if one[0] not in NOT_OF_THE_ENGINE)
            found[engine].setdefault(name, []).append((labels, values))
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
    return tuple(_engine(labels, series, place) for labels, series in known.items())


def _engine(labels: Labels, series: "_Series", place: str) -> EngineHistory:
    needed = [RUNNING, WAITING, SUCCESS]
    needed += [f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum")]
    for name in needed:
        if name not in series:
            instance = dict(labels).get("instance", "the engine")
            raise InputError(
                f"{place}: {instance} has no vllm:{name}",
                hint="Scrape all of /metrics: a relabelling rule may drop it.",
            )
    times = sorted(
        set.intersection(*(set(values) for name in needed for _, values in series[name]))
    )
    if len(times) < 2:
        raise InputError(
            f"{place}: fewer than two scrapes in that time", hint="Widen --from and --to."
        )
    scraped = _Scraped(series, times, place)
    return EngineHistory(
        labels=dict(labels),
        times_s=np.array(times),
        running=scraped.gauge(RUNNING),
        waiting=scraped.gauge(WAITING, SWAPPED),
        finished=scraped.by(SUCCESS, "finished_reason"),
        input_length=scraped.lengths(INPUT_LENGTH),
        output_length=scraped.lengths(OUTPUT_LENGTH),
    )


_Series = Mapping[str, list[tuple[Labels, Mapping[float, float]]]]
"""Metric without prefix → label sets with their samples, of one engine."""


@dataclass(frozen=True, slots=True)
class _Scraped:
    """One engine's series at the times at which all of them were scraped."""

    series: _Series
    times_s: list[float]
    place: str

    def gauge(self, *names: str) -> Floats:
        return self._added(values for name in names for _, values in self.series.get(name, ()))

    def by(self, name: str, label: str) -> dict[str, Floats]:
        parts: defaultdict[str, list[Mapping[float, float]]] = defaultdict(list)
        for of, values in self.series[name]:
            parts[dict(of).get(label, "")].append(values)
        return {key: self._added(found) for key, found in parts.items()}

    def lengths(self, name: str) -> HistogramSeries:
        by_bound = self.by(f"{name}_bucket", "le")
        try:
            counts = {float(le): values for le, values in by_bound.items()}
        except ValueError:
            counts = {}
        bounds = tuple(sorted(counts))
        if len(bounds) < 2 or bounds[0] < 0 or not math.isinf(bounds[-1]):
            raise InputError(
                f"{self.place}: the buckets of vllm:{name} are {', '.join(sorted(by_bound))[:100]}",
                hint="vLLM's last bucket is endless: keep the label le as it is.",
            )
        stacked = np.stack([counts[bound] for bound in bounds], axis=1)
        return HistogramSeries(bounds, stacked, self.gauge(f"{name}_sum"))

    def _added(self, found: Iterable[Mapping[float, float]]) -> Floats:
        total = np.zeros(len(self.times_s))
        for values in found:
            total += [values.get(time_s, 0.0) for time_s in self.times_s]
        return total


def increases(counter: Floats) -> Floats:
    """Return what came between a scrape and the one before; after a restart it counts from 0."""
    grown = np.diff(counter)
    return np.where(grown < 0, counter[1:], grown)


def restarted(engine: EngineHistory) -> NDArray[np.bool_]:
    """Return whether the server restarted between a scrape and the one before."""
    fell = np.diff(engine.input_length.counts[:, -1]) < 0
    for counter in (*engine.finished.values(), engine.output_length.counts[:, -1]):
        fell |= np.diff(counter) < 0
    return fell


def check_whole(engine: EngineHistory, *, place: str) -> None:
    """Raise InputError where scrapes are missing while the server ran; a restart explains a gap."""
    spacing_s = np.diff(engine.times_s)
    gaps = np.flatnonzero((spacing_s > GAP * engine.scrape_s) & ~restarted(engine))
    if not len(gaps):
        return
    edges = [0, *(int(gap) + 1 for gap in gaps), len(engine.times_s)]
    longest = max(
        pairwise(edges),
        key=lambda part: engine.times_s[part[1] - 1] - engine.times_s[part[0]],
    )
    instance = engine.labels.get("instance", "the engine")
    worst = int(gaps[np.argmax(spacing_s[gaps])])
    raise InputError(
        f"{place}: no scrapes of {instance} for {spacing_s[worst]:.0f} s from "
        f"{engine.times_s[worst]:.0f}",
        hint="Take a part without gaps: "
        f"--from {engine.times_s[longest[0]]:.0f} --to {engine.times_s[longest[1] - 1]:.0f}",
    )
