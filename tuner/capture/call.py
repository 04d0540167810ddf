"""One request to the engine while it is served, and the row that it becomes.

The event loop fills it in, in a few assignments a token; the row, with its hashes, is made later by
the thread that writes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tuner.capture.environment import Recording
from tuner.capture.prefix_ids import LORA, SESSION, fits, prefix_ids, pseudonym
from tuner.capture.spool import breathe
from tuner.capture.usage import Overheard
from tuner.trace.formats.reading.record import MAX_N, Row, Status

MAX_TOKENS_HASHED = 2**20
"""Of one prompt; no engine takes a longer one."""

HASH_SLICE = 64
"""Ids made at a stretch, about 0.1 ms, before the event loop may have the GIL."""


@dataclass(slots=True, eq=False)
class Call:
    """One request. Seconds on the monotonic clock; what is not known is None."""

    arrival_s: float
    input_length: int | None = None
    token_ids: Sequence[int] | None = None
    """Of the prompt, until they are hashed."""

    cache_salt: str = ""
    n: int = 1
    max_tokens: int | None = None
    priority: int = 0
    lora: str | None = None
    session: str | None = None
    replica: int | None = None
    images: int = 0
    stream: bool | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    lengths: dict[int, int] = field(default_factory=dict)
    """Choice → tokens generated."""

    total_length: int | None = None
    """Tokens of all choices together, where only that is known."""

    engine_stats: Any = None
    """vLLM's RequestStateStats: it goes on counting while the request is served."""

    finish_reason: str | None = None
    queue_s: float | None = None
    cached_tokens: int | None = None
    status: Status = "ok"
    overheard: Overheard | None = None
    """What went over the wire, where the engine could not be watched."""

    def saw(self, output: Any) -> bool:  # noqa: ANN401 - vLLM's RequestOutput
        """Enter what the engine put out; return whether it counts the tokens itself."""
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
            self.cached_tokens = getattr(output, "num_cached_tokens", None)
            self.engine_stats = getattr(output, "metrics", None)
            self.queue_s = queue_s(self.engine_stats)
            if output.prompt_token_ids is not None:
                self.input_length = len(output.prompt_token_ids)
        if output.finished:
            self._saw_last(output)
        if self.counts():
            return True
        for choice in output.outputs:
            before = self.lengths.get(choice.index, 0) if self.stream else 0
            self.lengths[choice.index] = before + len(choice.token_ids)
        return False

    def counts(self) -> bool:
        """Enter what the engine has counted; return whether it counts, which it does for n = 1."""
        count = getattr(self.engine_stats, "num_generation_tokens", None)
        if self.n != 1 or not count:
            return False
        self.lengths[0] = count
        return True

    def _saw_last(self, output: Any) -> None:  # noqa: ANN401 - vLLM's RequestOutput
        self.end_s = time.monotonic()
        for choice in output.outputs:
            if choice.finish_reason is not None:
                self.finish_reason = str(choice.finish_reason)
        if self.finish_reason == "abort":
            self.status = "aborted"
        elif self.finish_reason == "error":
            self.status = "error"

    def heard(self, overheard: Overheard) -> None:
        """Enter what went over the wire."""
        told = overheard.told()
        self.n, self.max_tokens, self.priority = told.n, told.max_tokens, told.priority
        self.token_ids, self.input_length = told.token_ids, told.input_length
        self.cached_tokens = told.cached_tokens
        self.finish_reason = self.finish_reason or told.finish_reason
        self.stream = overheard.streamed
        if told.total_length is not None and told.n == 1:
            self.lengths[0] = told.total_length
        else:
            self.total_length = told.total_length

    def ends(self, status: Status, reason: str | None = None) -> None:
        """Close the call before, or without, its last output."""
        if self.end_s is None:
            self.end_s = time.monotonic()
        self.status = status
        if reason is not None:
            self.finish_reason = reason


def row_of(call: Call, origin_s: float, recording: Recording) -> Row:
    """Return the row; what is unknown is left out. Raises ValueError for an n that no trace has."""
    if call.overheard is not None:
        call.heard(call.overheard)
    if not 1 <= call.n <= MAX_N:
        raise ValueError(f"n is {call.n}")
    lengths = tuple(call.lengths.get(choice, 0) for choice in range(call.n))
    longest: int | None = max(lengths)
    if call.total_length is not None:  # its parts are not known: see the header
        lengths, longest = (), -(-call.total_length // call.n)
    elif not call.lengths:
        lengths, longest = (), None
    answered = call.first_token_s is not None and call.stream is not False
    key = recording.key
    return Row(
        timestamp=ms(call.arrival_s - origin_s),
        input_length=call.input_length,
        output_length=longest,
        status=call.status,
        n=call.n,
        output_lengths=lengths if call.n > 1 else (),
        max_tokens=call.max_tokens,
        hash_ids=_hash_ids(call, recording),
        session_id=None if call.session is None else pseudonym(call.session, key=key, kind=SESSION),
        e2e_ms=None if call.end_s is None else ms(call.end_s - call.arrival_s),
        ttft_ms=ms((call.first_token_s or 0) - call.arrival_s) if answered else None,
        queue_ms=None if call.queue_s is None else ms(call.queue_s),
        finish_reason=call.finish_reason,
        priority=call.priority or None,
        lora=None if call.lora is None else pseudonym(call.lora, key=key, kind=LORA),
        replica=call.replica,
        stream=call.stream,
        cached_tokens=call.cached_tokens,
        num_images=call.images or None,
    )


def _hash_ids(call: Call, recording: Recording) -> tuple[int, ...]:
    if call.token_ids is None or call.images or not recording.prefix_ids:
        return ()
    if len(call.token_ids) > MAX_TOKENS_HASHED or not fits(call.token_ids):
        return ()
    ids = prefix_ids(
        call.token_ids,
        key=recording.key,
        block_size=recording.block_size,
        context=f"{call.lora or ''}\0{call.cache_salt}".encode(errors="replace"),
    )
    found: list[int] = []
    while some := tuple(islice(ids, HASH_SLICE)):
        found += some
        if len(some) == HASH_SLICE:
            breathe()
    return tuple(found)


def queue_s(metrics: Any) -> float | None:  # noqa: ANN401 - vLLM's RequestStateStats
    """Return the time from the first QUEUED to the first SCHEDULED, on the engine's clock."""
    queued_s = getattr(metrics, "queued_ts", 0.0)
    scheduled_s = getattr(metrics, "scheduled_ts", 0.0)
    return scheduled_s - queued_s if 0 < queued_s <= scheduled_s else None


def ms(seconds: float) -> float:
    return max(0.0, round(seconds * 1000, 3))
