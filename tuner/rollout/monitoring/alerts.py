"""The alerts: each a promise of the profile, how to see it broken, and what to do then. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tuner.rollout.monitoring.lines import MOST_MISSED, Latency, Lines
from tuner.rollout.monitoring.promql import Servers, bound_s

Severity = Literal["page", "ticket", "info"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. ``summary`` and ``action`` are templates of Prometheus."""

    name: str
    expression: str
    hold: str
    """How long it must hold; empty where the expression says so itself."""

    severity: Severity
    summary: str
    action: str
    window: str = ""
    """The long one, where several alerts have one name."""


@dataclass(frozen=True, slots=True)
class Burn:
    """A rate at which the error budget goes: ``factor`` times what it allows.

    The long window shows that it matters, the short one that it still does.
    """

    factor: float
    long: str
    short: str
    severity: Severity


BURNS = (
    Burn(14.4, "1h", "5m", "page"),
    Burn(6.0, "6h", "30m", "page"),
    Burn(3.0, "1d", "2h", "ticket"),
    Burn(1.0, "3d", "6h", "ticket"),
)
"""2, 5, 10 and 10 % of a 30-day budget: Google's SRE Workbook, chapter 5, "Multiwindow,
Multi-Burn-Rate Alerts"."""

LEAST_MISSED = 5
"""Requests that must miss for an alert: fewer may do so by chance, at night for example."""

MISSED = "tuner:slo_missed:ratio_rate"
"""Recorded for each window and each limit of the SLO."""

_WHERE = "{{ $labels.instance }} ({{ $labels.model_name }}, engine {{ $labels.engine }})"
_LATENCY: dict[Latency, tuple[str, str]] = {
    "itl": ("TunerDecodeSlower", "decode time per token"),
    "ttft": ("TunerFirstTokenSlower", "time to first token"),
    "e2el": ("TunerRequestsSlower", "end-to-end latency"),
}
_SLOWER = {
    "itl": "Compare the server with the profile (tuner diff PROFILE --url); look for throttling, a "
    "neighbour on the device, another driver. If it stays, sweep again on this machine.",
    "ttft": "See whether requests queue or prompts grew. Beyond the validated load add a replica; "
    "at the same load sweep again with today's trace.",
    "e2el": "See first whether decode time, queue or output lengths grew; for lengths sweep again "
    "with today's trace.",
}


def alerts(lines: Lines, servers: Servers, profile: str) -> list[Alert]:
    """Return every alert that the profile's numbers allow, the most urgent first.

    ``profile`` is what its recorded series are labelled with.
    """
    return [
        *_burning(lines, servers, profile),
        *_slower(lines, servers),
        *_beyond(lines, servers),
        *_queueing(lines, servers),
        *_memory(lines, servers),
        *_other(lines, servers),
    ]


def literal(words: str) -> str:
    """Return a text on one line in which Prometheus' templates find nothing to replace."""
    return " ".join(words.split()).replace("{{", "{ {")


def bounds(lines: Lines) -> dict[str, float]:
    """Return the SLO's limits that vLLM's buckets can show missed → the end of the bucket."""
    return {
        name: bound
        for name, seconds in lines.slo_s.items()
        if (bound := bound_s(name, seconds)) is not None
    }


def burns(lines: Lines) -> list[tuple[Burn, float]]:
    """Return the windows that can tell, with the share of missed requests that each allows.

    A budget so large that more than half of all requests would have to miss keeps the fastest
    window with that half.
    """
    found: list[tuple[Burn, float]] = []
    for burn in BURNS:
        threshold = burn.factor * lines.budget
        if threshold < MOST_MISSED or not found:
            found.append((burn, min(threshold, MOST_MISSED)))
    return found


def windows() -> list[str]:
    return [one.short for one in BURNS] + [one.long for one in BURNS if one.long != "6h"]


def _burning(lines: Lines, servers: Servers, profile: str) -> Iterator[Alert]:
    if not bounds(lines):
        return
    for burn, share in burns(lines):
        both = " and ".join(
            f'max without (limit) ({MISSED}{window}{{tuner_profile="{profile}"}}) > {share:.6g}'
            for window in (burn.long, burn.short)
        )
        enough = f"{servers.requests(burn.long)} > {LEAST_MISSED / share:.6g}"
        yield Alert(
            "TunerSloBudgetBurn",
            f"{both} and ignoring (tuner_profile) {enough}",
            "",
            burn.severity,
            f"{_WHERE} misses the SLO for {{{{ $value | humanizePercentage }}}} of requests over "
            f"{burn.long} and {burn.short}; {lines.attainment.limit:.4g} of all are promised "
            "within it",
            "See which of the other alerts fires: more load than was validated needs a replica or "
            "admission limits, slower decoding the machine looked at, other settings the profile "
            "applied again. Nothing else, but a release went out: roll it back.",
            window=burn.long,
        )


def _slower(lines: Lines, servers: Servers) -> Iterator[Alert]:
    for latency, line in lines.means_s.items():
        name, words = _LATENCY[latency]
        yield Alert(
            name,
            f"({servers.mean_s(latency, '10m')}) > {line.limit:.6g}",
            "10m",
            "ticket",
            f"{_WHERE}: mean {words} is {{{{ $value | humanizeDuration }}}}, promised "
            f"{line.promised * 1e3:.4g} ms and at most {line.limit * 1e3:.4g} ms up to the "
            "validated load",
            _SLOWER[latency],
        )


def _beyond(lines: Lines, servers: Servers) -> Iterator[Alert]:
    if lines.in_flight is not None:
        yield Alert(
            "TunerConcurrencyBeyondValidated",
            f"{servers.in_flight()} > {lines.in_flight}",
            "10m",
            "ticket",
            f"{_WHERE} has {{{{ $value }}}} requests in flight, more than the {lines.in_flight} "
            "that the profile was validated to",
            "The profile promises nothing here. Ask tuner plan PROFILE --load for more replicas, "
            "or sweep again with today's trace.",
        )
    if lines.requests_per_s > 0:
        yield Alert(
            "TunerLoadBeyondValidated",
            f"{servers.requests_per_s('30m')} > {lines.requests_per_s:.6g}",
            "30m",
            "ticket",
            f"{_WHERE} finishes {{{{ $value | humanize }}}} requests a second, more than the "
            f"{lines.requests_per_s:.4g} that the profile was validated to",
            "Ask tuner plan PROFILE --load for more replicas, or sweep again with today's trace.",
        )


def _queueing(lines: Lines, servers: Servers) -> Iterator[Alert]:
    waiting, running = servers.waiting(), servers.running()
    yield Alert(
        "TunerQueueGrowing",
        f"deriv({waiting}[10m]) * 600 > {lines.cap} and min_over_time({waiting}[5m]) > 0",
        "5m",
        "page",
        f"{_WHERE}: the queue grew by {{{{ $value | humanize }}}} requests in 10 minutes, more "
        f"than one full batch of {lines.cap}",
        "More comes in than is served. Add a replica or shed load (tuner apply PROFILE "
        "--admission-limits); see whether decoding became slower.",
    )
    yield Alert(
        "TunerCapBinds",
        f"min_over_time({running}[10m]) >= {lines.cap} and min_over_time({waiting}[10m]) > 0",
        "10m",
        "info",
        f"{_WHERE}: max_num_seqs {lines.cap} is full and requests wait, without a break",
        "While the SLO is kept, nothing. Else add a replica. What a larger max_num_seqs gives is "
        "in the profile's curve; beyond the curve only another sweep tells.",
    )
    yield Alert(
        "TunerOtherCap",
        f"max_over_time({running}[5m]) > {lines.cap}",
        "",
        "ticket",
        f"{_WHERE} runs {{{{ $value }}}} requests at a time, more than max_num_seqs {lines.cap}",
        "The server was not started with this profile: tuner apply PROFILE FILE and restart it, or "
        "write these rules anew from the profile that is deployed.",
    )


def _memory(lines: Lines, servers: Servers) -> Iterator[Alert]:
    if lines.kv_cache_usage is not None:
        line = lines.kv_cache_usage
        yield Alert(
            "TunerKvCacheFuller",
            f"{servers.kv_cache_usage()} > {line.limit:.6g}",
            "5m",
            "ticket",
            f"{_WHERE}: {{{{ $value | humanizePercentage }}}} of the KV cache is in use, the "
            f"promised peak is {line.promised:.1%}",
            "Prompts or outputs became longer, or the cache is smaller: compare tuner diff PROFILE "
            "--url, then sweep again with today's trace before preemptions begin.",
        )
    if lines.preemptions_per_request is not None:
        line = lines.preemptions_per_request
        yield Alert(
            "TunerMorePreemptions",
            f"{servers.preemptions_per_request('30m')} > {line.limit:.6g}",
            "15m",
            "ticket",
            f"{_WHERE}: {{{{ $value | humanize }}}} preemptions a request, promised "
            f"{line.promised:.3g}",
            "The KV cache does not hold what max_num_seqs lets in. Give it more memory or sweep "
            "again with today's trace.",
        )


def _other(lines: Lines, servers: Servers) -> Iterator[Alert]:
    if lines.settings:
        stated = literal(", ".join(f"{name} {value}" for name, value in lines.settings.items()))
        yield Alert(
            "TunerOtherSettings",
            servers.other_settings(lines.settings),
            "5m",
            "ticket",
            "{{ $labels.instance }} (engine {{ $labels.engine }}) was started with other settings "
            f"of its KV cache than the profile's: {stated}",
            "See what differs: tuner diff PROFILE --url. Then tuner apply PROFILE FILE and restart "
            "the server.",
        )
    yield Alert(
        "TunerNothingWatched",
        servers.absent(),
        "10m",
        "ticket",
        "no server of the profile is scraped, so none of its alerts can fire",
        "Mend the scraping; if the model is served under another name, write the rules anew with "
        """--selector 'model_name="…"'.""",
    )
