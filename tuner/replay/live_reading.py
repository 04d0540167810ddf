"""Reads a replay under way as its clients see it, cheaply enough for four times a second. Pure."""

from collections.abc import Iterable, Sequence
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
    the engine would cost it time. Prompts that are not through are left out, and what is only kept
    for later. None where the engine does not say how large the cache is."""

    @property
    def waiting(self) -> int:
        """Requests in flight before their first token."""
        return self.in_flight - self.decoding


def reading(  # noqa: PLR0913 - what clients see of a replay
    elapsed_s: float,
    *,
    done: int,
    flying: Iterable[Reply],
    in_flight: int,
    ttft_s: Sequence[float],
    kv_cache_usage: float | None,
) -> LiveReading:
    """Return what a replay shows. ``flying`` are the replies of those in flight, ``ttft_s`` the
    newest times to first token."""
    decoding, tpots_s = 0, list[float]()
    for one in flying:
        if one.first_token_s is None or one.last_token_s is None:
            continue
        decoding += 1
        if one.output_tokens > 1:
            tpots_s.append((one.last_token_s - one.first_token_s) / (one.output_tokens - 1))
    tail = sorted(ttft_s[-RECENT:])
    return LiveReading(
        elapsed_s=elapsed_s,
        done=done,
        in_flight=in_flight,
        decoding=min(decoding, in_flight),
        tpot_s=median(tpots_s) if tpots_s else None,
        ttft_tail_s=tail[int(TAIL * (len(tail) - 1))] if tail else None,
        kv_cache_usage=kv_cache_usage,
    )
