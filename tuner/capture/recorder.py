"""The middleware that records a server's traffic: ``vllm serve --middleware
tuner.capture.TraceRecorder``.

It passes on every message untouched. An error in here costs the row of that request, is counted,
and is logged once: no request fails because of it, and no other row is lost.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tuner.capture import tap
from tuner.capture.call import CURRENT, Call, Exchange, row_of
from tuner.capture.spool import Spool, log, open_spool
from tuner.system.contain_errors import contain_errors
from tuner.trace.record import TraceHeader

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATES = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
    *("/inference/v1/generate", "/generate"),
)
"""Ends of the paths at which an engine is asked to generate."""


class TraceRecorder:
    """Pure ASGI middleware; docs/traces.md says what it records and how to set it up."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._engine: Any = None
        self._spool: Spool[Call] | None = open_spool(self._header, row_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        spool = self._spool
        if spool is not None and scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                spool.close()
            return
        is_request = scope["type"] == "http" and scope["method"] == "POST"
        if spool is not None and is_request and CURRENT.get() is None:
            if self._engine is None:
                contain_errors(self._lost, self._attach, scope, spool)
            if self._engine is not None:
                await self._record(scope, receive, send, spool)
                return
        await self._app(scope, receive, send)  # nothing to record, or another recorder has it

    async def _record(self, scope: Scope, receive: Receive, send: Send, spool: Spool[Call]) -> None:
        def emit(call: Call) -> None:
            if exchange.is_lost:
                return
            tokens = len(call.token_ids or ())
            if not spool.has_room_for(tokens):
                call.token_ids, tokens = None, 0  # the row then has no prefix ids
            spool.put(call, tokens=tokens)

        exchange = Exchange(emit)
        token = CURRENT.set(exchange)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                contain_errors(self._lost, exchange.disconnect)
            return message

        def sending(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                exchange.http_status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body"):
                exchange.was_answered = True
            return send(message)

        failed = True
        try:
            await self._app(scope, receiving, sending)
            failed = False
        finally:
            generates = str(scope.get("path", "")).endswith(GENERATES)
            contain_errors(self._lost, exchange.finish, failed=failed, generates=generates)
            CURRENT.reset(token)

    def _attach(self, scope: Scope, spool: Spool[Call]) -> None:
        """Look for the engine behind the application; the server has it by its first request."""
        engine = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
        if engine is not None and tap.attach(
            engine, self._lost, keep_tokens=spool.settings.prefix_ids
        ):
            self._engine = engine
            return
        log.warning("tuner: nothing is recorded: no vLLM engine is behind this server")
        self._spool = None

    def _header(self) -> TraceHeader:
        model = getattr(getattr(self._engine, "model_config", None), "model", None)
        prefix_ids = self._spool is not None and self._spool.settings.prefix_ids
        return TraceHeader(
            source="vllm-middleware",
            model=model if isinstance(model, str) else None,
            missing=() if prefix_ids else ("hash_ids",),
        )

    def _lost(self, problem: Exception) -> None:
        """Give up the row of the request on whose behalf something failed in here."""
        exchange = CURRENT.get()
        if self._spool is None or (exchange is not None and exchange.is_lost):
            return
        if exchange is not None:
            exchange.is_lost = True
        self._spool.lose("not_recorded", problem=problem)
