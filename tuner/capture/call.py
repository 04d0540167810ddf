"""One HTTP request, the calls to the engine that it makes, and the rows that they become.

The event loop fills a call in, with a few assignments a token; the thread that writes adds the
times and the hashes. Written against vLLM 0.32's ``AsyncLLM``.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import hmac
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.capture.spool import breathe
from tuner.trace.record import MAX_N, REFUSED, Row, Status

BLOCK_SIZE = 16
"""Tokens that one prefix id stands for: vLLM's default block."""

NOT_TRAFFIC = frozenset({401, 403, 404, 405, 415})
"""Wrong keys, routes and models: requests that no setting of the engine would serve."""

MAX_TOKENS_HASHED = 2**20
"""Tokens of one prompt; no engine takes a longer one."""

HASH_SLICE = 64
"""Ids made in one go, about 0.1 ms, before the event loop may have the GIL."""

ID_BITS = 53
"""JSON readers that keep numbers as floats read these exactly, too."""

STATUSES: dict[str, Status] = {"abort": "aborted", "error": "error"}
"""Finish reasons of the engine that are not those of a whole reply."""

End = Literal["finished", "failed", "canceled"]


@dataclass(slots=True, eq=False)
class Call:
    """One call of ``engine.generate``. Seconds are on the monotonic clock."""

    row: Row
    """Filled in as facts become known; ``finished_row`` adds times, lengths and prefix ids."""

    arrival_s: float
    processor: Any = None
    """The engine's ``output_processor``, and the request's id there."""

    request_id: str = ""
    token_ids: Sequence[int] = ()
    """Tokens of the prompt, until they are hashed."""

    is_stream: bool = False
    """Each output has the tokens since the one before."""

    cache: bytes = b""
    """What separates its prefix cache from others: adapter and salt."""

    first_token_s: float | None = None
    end_s: float = 0.0
    end: End | None = None
    lengths: dict[int, int] = field(default_factory=dict)
    """Choice → tokens generated."""

    stats: Any = None
    """vLLM's RequestStateStats: they keep counting while the request is served."""

    def saw(self, output: Any) -> bool:
        """Enter an output of the engine; return whether the engine counts the tokens itself."""
        row = self.row
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
            self.stats = getattr(output, "metrics", None)
            row.input_length = len(output.prompt_token_ids or ()) or row.input_length
        if output.finished:
            self.end, self.end_s = "finished", time.monotonic()
            reasons = [choice.finish_reason for choice in output.outputs]
            row.status = next((STATUSES[each] for each in reasons if each in STATUSES), "ok")
        if self.is_counted():
            return True
        for choice in output.outputs:
            before = self.lengths.get(choice.index, 0) if self.is_stream else 0
            self.lengths[choice.index] = before + len(choice.token_ids)
        return False

    def is_counted(self) -> bool:
        """Enter the engine's own count of tokens; return whether it has one, as for n = 1."""
        count = getattr(self.stats, "num_generation_tokens", 0)
        if self.row.n == 1 and count:
            self.lengths[0] = count
        return self.row.n == 1 and count > 0

    def count_tokens(self) -> None:
        """Enter how many tokens there are so far: a reply in one piece shows none of them."""
        ids_of = getattr(self.processor, "external_req_ids", None)
        if self.is_counted() or self.lengths or ids_of is None:
            return
        ids = ids_of.get(self.request_id, ())
        if not ids:
            self.lengths[0] = 0  # the engine has not even begun
        for id_ in ids:
            state = self.processor.request_states.get(id_)
            stats = getattr(state, "stats", None)
            if stats is not None:
                self.stats = stats
                choice = state.request_index if self.row.n > 1 else 0
                self.lengths[choice] = stats.num_generation_tokens


def call_of(engine: Any, arguments: Mapping[str, Any], arrival_s: float, key: bytes) -> Call:
    """Return the call of ``engine.generate`` with these arguments."""
    prompt, params = arguments["prompt"], arguments["sampling_params"]

    def part(name: str) -> Any:  # of a dict or an EngineCoreRequest
        return prompt.get(name) if isinstance(prompt, dict) else getattr(prompt, name, None)

    lora = getattr(arguments.get("lora_request"), "lora_name", None)
    session, ids = arguments.get("session_id"), part("prompt_token_ids")
    named = b"session\0" + str(session).encode(errors="replace")  # which the digest does not reveal
    row = Row(
        timestamp=0,
        input_length=None if ids is None else len(ids),
        n=params.n,
        max_tokens=params.max_tokens,
        session_id=None if session is None else hmac.digest(key, named, "sha256")[:6].hex(),
        priority=arguments.get("priority") or None,
        replica=arguments.get("data_parallel_rank"),
    )
    is_text = not any(part(name) for name in ("mm_hashes", "mm_features"))
    return Call(
        row,
        arrival_s,
        getattr(engine, "output_processor", None),
        str(arguments["request_id"]),
        ids if ids and is_text and part("prompt_embeds") is None else (),
        params.output_kind.name == "DELTA",
        f"{lora or ''}\0{part('cache_salt') or ''}".encode(errors="replace"),
    )


CURRENT: "ContextVar[Exchange | None]" = ContextVar("tuner_exchange", default=None)
"""The exchange on whose behalf code runs; tasks that a server starts for it inherit it."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One HTTP request. ``emit`` takes its calls once it is known how they and it ended."""

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

    calls: list[Call] = field(default_factory=list)

    def end_call(self, call: Call, end: End) -> None:
        """Enter that a call ended; the first end counts. Emit it if the request is over, too."""
        if call.end is None:
            call.end, call.end_s = end, time.monotonic()
        if self.is_over and call in self.calls:
            self.calls.remove(call)
            # The answer's status says what a failure means.
            if call.end == "canceled":  # its client left, or the server dropped it
                call.row.status = "aborted" if self.client_left else "error"
            elif call.end == "failed":
                call.row.status = "rejected" if self.http_status in REFUSED else "error"
            self.emit(call)

    def disconnect(self) -> None:
        """Enter that the client hung up. After the whole answer that is not an abort."""
        if not self.was_answered and not self.client_left:
            self.client_left = True
            for call in self.calls:
                if call.end is None:
                    call.count_tokens()

    def finish(self, *, failed: bool, generates: bool) -> None:
        """End the request: the server is done with it. Open calls then run in the background."""
        self.is_over = True
        refused = failed or self.client_left or (self.http_status or 500) >= 400
        if refused and generates and not self.calls and self.http_status not in NOT_TRAFFIC:
            self.calls.append(Call(Row(timestamp=0), self.arrival_s))
            self.end_call(self.calls[0], "canceled" if self.client_left else "failed")
        for call in tuple(self.calls):
            if failed or self.client_left or call.end is not None:
                self.end_call(call, "canceled")


def finished_row(call: Call, *, origin_s: float, key: bytes) -> Row:
    """Return the row of a call. Raises ValueError for an n that no server takes."""
    row = call.row
    if not 1 <= row.n <= MAX_N:
        raise ValueError(f"n is {row.n}")
    if call.lengths:
        lengths = tuple(call.lengths.get(choice, 0) for choice in range(row.n))
        row.output_length = max(lengths)
        row.output_lengths = lengths if row.n > 1 else ()
    row.timestamp = _ms(call.arrival_s - origin_s)
    row.e2e_ms = _ms(call.end_s - call.arrival_s)
    if call.first_token_s is not None and call.is_stream:
        row.ttft_ms = _ms(call.first_token_s - call.arrival_s)
    queued_s, scheduled_s = (
        getattr(call.stats, name, 0.0) for name in ("queued_ts", "scheduled_ts")
    )
    if 0 < queued_s <= scheduled_s:
        row.queue_ms = _ms(scheduled_s - queued_s)
    ids: list[int] = []
    try:
        for id_ in prefix_ids(call.token_ids[:MAX_TOKENS_HASHED], key, BLOCK_SIZE, call.cache):
            ids.append(id_)
            if len(ids) % HASH_SLICE == 0:
                breathe()
    except OverflowError:  # a client sends what it likes
        ids = []
    row.hash_ids = tuple(ids)
    return row


def prefix_ids(
    tokens: Sequence[int], key: bytes, block_size: int, context: bytes = b""
) -> Iterator[int]:
    """Yield an id for each full block of tokens: equal where prompts begin alike, else meaningless.

    h_i = HMAC-SHA256(key, h_(i-1) | tokens of block i | context), so an id stands for the whole
    prefix up to its block, as in vLLM's prefix cache. The key is thrown away: without it nobody can
    look up what a known text would give. Raises OverflowError for tokens beyond 64 bits.
    """
    above = b""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = array("q", tokens[start : start + block_size]).tobytes()
        above = hmac.digest(key, above + block + context, "sha256")
        yield int.from_bytes(above[:8], "big") >> (64 - ID_BITS)


def _ms(seconds: float) -> float:
    return max(0.0, round(seconds * 1000, 3))
