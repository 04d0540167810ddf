"""One HTTP request, the calls to the engine that it makes, and the rows that they become.

The event loop fills a call in, with a few assignments a token; the thread that writes makes the
row and its hashes.
"""

import hmac
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.capture.spool import BLOCK_SIZE, Settings, breathe
from tuner.trace.record import MAX_N, REFUSED, Row, Status

NOT_TRAFFIC = frozenset({401, 403, 404, 405, 415})
"""Wrong keys, routes and models: requests that no setting of the engine would serve."""

MAX_TOKENS_HASHED = 2**20
"""Tokens of one prompt; no engine takes a longer one."""

HASH_SLICE = 64
"""Ids made in one go, about 0.1 ms, before the event loop may have the GIL."""

ID_BITS = 53
"""JSON readers that keep numbers as floats read these exactly, too."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of ``engine.generate``. Seconds on the monotonic clock; None is unknown."""

    arrival_s: float
    status: Status = "ok"
    finish_reason: str | None = None
    input_length: int | None = None
    token_ids: Sequence[int] | None = None
    """Tokens of the prompt, until they are hashed."""
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
    stats: Any = None
    """vLLM's RequestStateStats: they keep counting while the request is served."""
    queue_s: float | None = None
    cached_tokens: int | None = None
    end: Literal["finished", "failed", "canceled"] | None = None
    """How it ended; None while it is under way."""

    def saw(self, output: Any) -> bool:  # noqa: ANN401 - vLLM's RequestOutput
        """Enter an output of the engine; return whether the engine counts the tokens itself."""
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
            self.cached_tokens = getattr(output, "num_cached_tokens", None)
            self.stats = getattr(output, "metrics", None)
            self.queue_s = queue_s(self.stats)
            if output.prompt_token_ids is not None:
                self.input_length = len(output.prompt_token_ids)
        if output.finished:
            for choice in output.outputs:
                if choice.finish_reason is not None:
                    self.finish_reason = str(choice.finish_reason)
            self.status = _STATUSES.get(self.finish_reason or "", "ok")
        if self.is_counted():
            return True
        for choice in output.outputs:
            before = self.lengths.get(choice.index, 0) if self.stream else 0
            self.lengths[choice.index] = before + len(choice.token_ids)
        return False

    def is_counted(self) -> bool:
        """Enter the engine's own count of tokens; return whether it has one, as for n = 1."""
        count = getattr(self.stats, "num_generation_tokens", None)
        if self.n != 1 or not count:
            return False
        self.lengths[0] = count
        return True


_STATUSES: dict[str, Status] = {"abort": "aborted", "error": "error"}

CURRENT: "ContextVar[Exchange | None]" = ContextVar("tuner_exchange", default=None)
"""The exchange on whose behalf code runs; tasks that a server starts for it inherit it."""


@dataclass(slots=True)
class Exchange:
    """One HTTP request. ``emit`` takes each of its calls once it is known how that ended."""

    emit: Callable[[Call], None]
    arrival_s: float = field(default_factory=time.monotonic)
    http_status: int | None = None
    was_answered: bool = False
    """The whole answer was sent."""
    client_left: bool = False
    """The client hung up before that."""
    is_over: bool = False
    is_lost: bool = False
    """Recording it failed: it has no row, and is counted as lost."""
    called_engine: bool = False
    finished_call: bool = False
    calls: dict[Call, Callable[[], None]] = field(default_factory=dict)
    """Calls that are not emitted → what enters the number of tokens that they have so far."""

    def begin(self, call: Call, count_tokens: Callable[[], None]) -> None:
        """Enter a call. It arrived with the request, or after the step before: the prompts of a
        batch arrive together, the steps of a beam search do not."""
        self.called_engine = True
        self.calls[call] = count_tokens
        if self.finished_call:
            call.arrival_s = time.monotonic()

    def end_call(self, call: Call, how: Literal["finished", "failed", "canceled"]) -> None:
        """Enter that a call ended. The first end counts."""
        if call.end is not None:
            return
        if how == "canceled" and not self.client_left:
            self.calls[call]()
        call.end, call.end_s = how, time.monotonic()
        self.finished_call |= how == "finished"
        if how == "finished" or self.is_over:  # the answer's status says what a failure means
            self._emit(call)

    def disconnect(self) -> None:
        """Enter that the client hung up. After the whole answer that is not an abort."""
        if self.was_answered or self.client_left:
            return
        self.client_left = True
        for call, count_tokens in self.calls.items():
            if call.end is None:
                count_tokens()

    def finish(self, *, failed: bool, generates: bool) -> None:
        """End the request: the server is done with it. Open calls then run in the background."""
        refused = failed or self.client_left or (self.http_status or 500) >= 400
        is_traffic = generates and self.http_status not in NOT_TRAFFIC
        if is_traffic and refused and not self.called_engine:
            call = Call(self.arrival_s)
            self.begin(call, lambda: None)
            self.end_call(call, "canceled" if self.client_left else "failed")
        for call in list(self.calls):
            if self.client_left or failed:
                self.end_call(call, "canceled")
            if call.end is not None:
                self._emit(call)
        self.is_over = True

    def _emit(self, call: Call) -> None:
        del self.calls[call]
        status = self.http_status
        if call.end == "canceled":  # its client left, or the server dropped it
            call.status = "aborted" if self.client_left else "error"
            call.finish_reason = "abort"
        elif call.end == "failed":
            call.status = "rejected" if status in REFUSED else "error"
            call.finish_reason = f"http_{status}" if status and status >= 400 else "error"
        self.emit(call)


def row_of(call: Call, origin_s: float, settings: Settings) -> Row:
    """Return the row of a call. Raises ValueError for an n that no server takes."""
    if not 1 <= call.n <= MAX_N:
        raise ValueError(f"n is {call.n}")
    lengths = tuple(call.lengths.get(choice, 0) for choice in range(call.n))
    answered = call.first_token_s is not None and call.stream is not False
    key = settings.key
    return Row(
        timestamp=_ms(call.arrival_s - origin_s),
        input_length=call.input_length,
        output_length=max(lengths) if call.lengths else None,
        status=call.status,
        n=call.n,
        output_lengths=lengths if call.n > 1 and call.lengths else (),
        max_tokens=call.max_tokens,
        hash_ids=_hash_ids(call, settings),
        session_id=None if call.session is None else pseudonym(call.session, key, b"session"),
        e2e_ms=None if call.end_s is None else _ms(call.end_s - call.arrival_s),
        ttft_ms=_ms((call.first_token_s or 0) - call.arrival_s) if answered else None,
        queue_ms=None if call.queue_s is None else _ms(call.queue_s),
        finish_reason=call.finish_reason,
        priority=call.priority or None,
        lora=None if call.lora is None else pseudonym(call.lora, key, b"lora"),
        replica=call.replica,
        stream=call.stream,
        cached_tokens=call.cached_tokens,
        num_images=call.images or None,
    )


def _hash_ids(call: Call, settings: Settings) -> tuple[int, ...]:
    tokens = call.token_ids
    if not tokens or call.images or len(tokens) > MAX_TOKENS_HASHED:
        return ()
    if min(tokens) < 0 or max(tokens) >= 2**31:  # a client sends what it likes
        return ()
    context = f"{call.lora or ''}\0{call.cache_salt}".encode(errors="replace")
    result: list[int] = []
    for block_id in prefix_ids(tokens, settings.key, BLOCK_SIZE, context):
        result.append(block_id)
        if len(result) % HASH_SLICE == 0:
            breathe()
    return tuple(result)


def prefix_ids(
    tokens: Sequence[int], key: bytes, block_size: int, context: bytes = b""
) -> Iterator[int]:
    """Yield an id for each full block of tokens: equal where prompts begin alike, else meaningless.

    h_i = HMAC-SHA256(key, h_(i-1) | tokens of block i | context), so an id stands for the whole
    prefix up to its block, as in vLLM's prefix cache. The key is thrown away: without it nobody can
    look up what a known text would give. ``context`` is what else parts two caches, as the adapter.
    """
    above = b""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = array("q", tokens[start : start + block_size]).tobytes()
        above = hmac.digest(key, above + block + context, "sha256")
        yield int.from_bytes(above[:8], "big") >> (64 - ID_BITS)


def pseudonym(text: str, key: bytes, kind: bytes) -> str:
    """Return a name that is the same for the same text, and tells nothing else."""
    return hmac.digest(key, kind + b"\0" + text.encode(errors="replace"), "sha256")[:6].hex()


def queue_s(stats: Any) -> float | None:  # noqa: ANN401 - vLLM's RequestStateStats
    """Return the time from the first QUEUED to the first SCHEDULED, on the engine's clock."""
    queued_s = getattr(stats, "queued_ts", 0.0)
    scheduled_s = getattr(stats, "scheduled_ts", 0.0)
    return scheduled_s - queued_s if 0 < queued_s <= scheduled_s else None


def _ms(seconds: float) -> float:
    return max(0.0, round(seconds * 1000, 3))
