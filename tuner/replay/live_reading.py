"""Reads a replay under way as its clients see it, cheaply enough for four times a second. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tuner.engines.seam import Reply

RECENT = 200
"""Requests whose first tokens tell of now."""

TAIL = 0.95
"""Ten of so many first tokens are beyond it; beyond a p99 there would be two."""


@dataclass(frozen=True, slots=True)
class LiveReading:
    """One reading. Requests in flight are decoding, or have not seen their first token."""

    elapsed_s: float
    done: int
    in_flight: int
    decoding: int
    tpot_s: float | None
    """Median over the requests that decode, since their first token; None without any."""

    ttft_tail_s: float | None
    """p95 over the newest requests with a first token; None without any."""

    kv_cache_usage: float | None
    """Share of the KV cache that those that decode fill, about. It is counted here, because asking
    the engine would cost it time. Unfinished prompts and cached prefixes are left out. None where
    the engine does not report how large the cache is."""

    @property
    def waiting(self) -> int:
        """Requests in flight before their first token."""
        return self.in_flight - self.decoding


def reading(
    elapsed_s: float,
    *,
    done: int,
    flying: Sequence[Reply],
    ttft_s: Sequence[float],
    kv_cache_usage: float | None,
) -> LiveReading:
    """Return what a replay shows. ``flying`` are the replies of those in flight, ``ttft_s`` the
    newest times to first token."""
    tpots_s = [
        (one.seen_s[-1] - one.seen_s[0]) / (one.output_tokens - 1)
        for one in flying
        if one.output_tokens > 1 and one.seen_s
    ]
    tail = sorted(ttft_s[-RECENT:])
    return LiveReading(
        elapsed_s=elapsed_s,
        done=done,
        in_flight=len(flying),
        decoding=sum(bool(one.seen_s) for one in flying),
        tpot_s=median(tpots_s) if tpots_s else None,
        ttft_tail_s=tail[int(TAIL * (len(tail) - 1))] if tail else None,
        kv_cache_usage=kv_cache_usage,
    )
