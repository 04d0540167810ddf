"""The middleware that records a server's traffic: ``vllm serve --middleware
tuner.capture.TraceRecorder``.

It hands on every message untouched. An error in here costs the row of that request, is counted, and
is logged once. No request fails because of it, and no other row is lost.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tuner.capture.call import Call, row_of
from tuner.capture.engine_tap import attach
from tuner.capture.environment import TRACE_OUT
from tuner.capture.exchange import CURRENT, NOT_TRAFFIC, REFUSED, Exchange
from tuner.capture.spool import spool_asked_for
from tuner.capture.usage import Overheard, Room
from tuner.system.contain_errors import contain_errors
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DEFAULT_OUT = "tuner-trace"
"""Under the server's working directory."""

GENERATES = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
    *("/inference/v1/generate", "/generate"),
)
"""Ends of the paths at which an engine is asked to generate."""


BYTES_A_TOKEN = 32
"""Bytes of a token id in a list: by it, kept bytes are counted as kept tokens."""


class TraceRecorder:
    """Pure ASGI middleware; docs/capture.md says what it records and how it is set up."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._engine: Any = None
        self._room = Room()
        self._watching: bool | None = None
        """Whether the engine's own calls are seen; None until the first request."""

        self._spool = spool_asked_for(
            out=TRACE_OUT, default=DEFAULT_OUT, name="trace", header=self._header, row_of=self._row
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._spool is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                self._spool.close()
        elif scope["type"] == "http" and scope["method"] == "POST" and CURRENT.get() is None:
            await self._record(scope, receive, send)  # unless another recorder has it already
        else:
            await self._app(scope, receive, send)

    async def _record(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(str(scope.get("path", "")), self._emit)
        token = CURRENT.set(exchange)
        if self._watching is None:
            contain_errors(self._lacks, self._watch, scope)
        heard = None
        if not self._watching and exchange.path.endswith(GENERATES):
            heard = Overheard(self._room)

        async def receiving() -> Message:
            message = await receive()
            contain_errors(self._lacks, _received, message, exchange, heard)
            return message

        def sending(message: Message) -> Awaitable[None]:
            if heard is not None or not message.get("more_body"):  # few of a stream's pieces
                contain_errors(self._lacks, _sends, message, exchange, heard)
            return send(message)

        failed = True
        try:
            await self._app(scope, receiving, sending)
            failed = False
        finally:
            contain_errors(self._lacks, self._ended, exchange, heard, scope, failed)
            CURRENT.reset(token)
            if heard is not None:
                heard.leaves()

    def _ended(
        self, exchange: Exchange, heard: Overheard | None, scope: Scope, failed: bool
    ) -> None:
        exchange.ended(failed=failed)
        if exchange.called or not exchange.path.endswith(GENERATES):
            return
        status = exchange.http_status
        if status in NOT_TRAFFIC:
            return
        overheard = heard or Overheard()
        metadata = scope.get("state", {}).get("request_metadata")
        overheard.usage = getattr(metadata, "final_usage_info", None)
        call = Call(exchange.arrival_s, overheard=overheard)
        call.first_token_s = exchange.first_chunk_s
        if exchange.gone:
            call.ends("aborted", "abort")
        elif status in REFUSED:
            call.ends("rejected", f"http_{status}")
        elif failed or status is None or status >= 400:
            call.ends("error", f"http_{status}" if status else "error")
        else:
            call.ends("ok")
        self._emit(call)

    def _emit(self, call: Call) -> None:
        exchange = CURRENT.get()
        if self._spool is None or (exchange is not None and exchange.lost):
            return
        size = len(call.token_ids or ())
        if call.overheard is not None:
            size = call.overheard.size // BYTES_A_TOKEN
        if size and not self._spool.has_room_for(size):
            call.token_ids, call.overheard, size = None, None, 0
        self._spool.put(call, tokens=size)

    def _watch(self, scope: Scope) -> None:
        """Look for the engine behind the application; the server has it by its first request."""
        self._watching = False
        state = getattr(scope.get("app"), "state", None)
        engine = getattr(state, "engine_client", None)
        if engine is not None and self._spool is not None:
            self._engine = engine
            keep = self._spool.recording.prefix_ids
            self._watching = attach(engine, self._lacks, keep_tokens=keep)

    def _row(self, call: Call) -> Row:
        assert self._spool is not None
        return row_of(call, self._spool.origin_s, self._spool.recording)

    def _header(self) -> TraceHeader:
        missing: tuple[str, ...] = ()
        if not self._watching:
            missing = ("output_lengths", "queue_ms", "session_id", "lora")
        if self._spool is not None and not self._spool.recording.prefix_ids:
            missing = (*missing, "hash_ids")
        model = getattr(getattr(self._engine, "model_config", None), "model", None)
        return TraceHeader(
            source="vllm-middleware" if self._watching else "http-middleware",
            model=model if isinstance(model, str) else None,
            missing=missing,
        )

    def _lacks(self, problem: Exception) -> None:
        """Give up the row of the request on whose behalf something failed in here."""
        exchange = CURRENT.get()
        if self._spool is None or (exchange is not None and exchange.lost):
            return
        if exchange is not None:
            exchange.lost = True
        self._spool.lacks("not_recorded", problem)


def _received(message: Message, exchange: Exchange, heard: Overheard | None) -> None:
    if message["type"] == "http.disconnect":
        exchange.disconnected()
    elif heard is not None and message["type"] == "http.request":
        heard.hear_request(message.get("body", b""))


def _sends(message: Message, exchange: Exchange, heard: Overheard | None) -> None:
    if message["type"] == "http.response.start":
        exchange.http_status = message["status"]
        if heard is not None:
            heard.streamed = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message.get("headers", ())
            )
        return
    if heard is not None and heard.hear_answer(message.get("body", b"")):
        exchange.saw_chunk()
    if message["type"] == "http.response.body" and not message.get("more_body"):
        exchange.answered = True
