"""The middleware that records a server's traffic: ``vllm serve --middleware
tuner.capture.TraceRecorder``.

It passes on every message untouched. An error in here costs the row of that request, is counted,
and is logged once: no request fails because of it, and no other row is lost.
"""

import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from functools import partial
from typing import Any

from tuner.capture.call import BLOCK_SIZE, CURRENT, Call, End, Exchange, call_of, finished_row
from tuner.capture.spool import Spool, log
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
        self._spool: Spool | None = None
        try:
            self._spool = Spool(os.environ, self._header)
        except Exception as problem:  # noqa: BLE001 - the server has to start
            hint = getattr(problem, "hint", "Set TUNER_TRACE_OUT to a folder that can be written.")
            log.warning("tuner: nothing is recorded: %s; %s", problem, hint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] == "http" and scope["method"] == "POST"
        if is_request and self._spool is not None and self._engine is None:
            contain_errors(self._lose, self._attach, scope, self._spool)
        if is_request and self._spool is not None and CURRENT.get() is None:
            await self._record(scope, receive, send, self._spool)
        else:
            await self._app(scope, receive, send)  # nothing to record, or another recorder has it

    async def _record(self, scope: Scope, receive: Receive, send: Send, spool: Spool) -> None:
        def emit(call: Call) -> None:
            if exchange.is_lost:
                return
            if not spool.has_room_for(len(call.token_ids)):
                call.token_ids = ()  # the row then has no prefix ids
            make_row = partial(finished_row, call, origin_s=spool.origin_s, key=spool.key)
            spool.put(make_row, tokens=len(call.token_ids))

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                contain_errors(self._lose, exchange.disconnect)
            return message

        def sending(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                exchange.http_status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body"):
                exchange.was_answered = True
            return send(message)

        exchange, failed = Exchange(emit), True
        token = CURRENT.set(exchange)
        try:
            await self._app(scope, receiving, sending)
            failed = False
        finally:
            generates = str(scope.get("path", "")).endswith(GENERATES)
            contain_errors(self._lose, exchange.finish, failed=failed, generates=generates)
            CURRENT.reset(token)

    def _attach(self, scope: Scope, spool: Spool) -> None:
        """Tap the engine behind the application; the server has it by its first request."""
        engine = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
        if not callable(getattr(engine, "generate", None)):
            log.warning("tuner: nothing is recorded: no vLLM engine is behind this server")
            self._spool = None
            return
        self._tap(engine, spool)
        self._engine = engine

    def _tap(self, engine: Any, spool: Spool) -> None:  # noqa: ANN401 - vLLM's AsyncLLM
        """Replace the engine's ``generate`` by one that passes on what it yields, and reads it."""
        generate = engine.generate
        signature = inspect.signature(generate)

        def begin(exchange: Exchange, *args: Any, **kwargs: Any) -> Call:  # noqa: ANN401
            arguments = signature.bind(*args, **kwargs).arguments
            # The prompts of a batch arrive with the request, steps of a beam after the step before.
            is_later = any(call.end == "finished" for call in exchange.calls)
            arrival_s = time.monotonic() if is_later else exchange.arrival_s
            call = call_of(engine, arguments, arrival_s, spool.key)
            exchange.calls.append(call)
            return call

        async def tapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: ANN401
            call, is_counted = None, False
            end: End = "canceled"
            if (exchange := CURRENT.get()) is not None:
                call = contain_errors(self._lose, begin, exchange, *args, **kwargs)
            try:
                async with aclosing(generate(*args, **kwargs)) as stream:
                    async for output in stream:
                        if call is not None and (not is_counted or output.finished):
                            is_counted = contain_errors(self._lose, call.saw, output) is True
                        yield output
                end = "finished"
            except Exception:
                end = "failed"
                raise
            finally:
                if exchange is not None and call is not None:
                    contain_errors(self._lose, exchange.end_call, call, end)

        engine.generate = tapped

    def _header(self) -> TraceHeader:
        model = getattr(getattr(self._engine, "model_config", None), "model", None)
        return TraceHeader(
            source="vllm-middleware",
            model=model if isinstance(model, str) else None,
            block_size=BLOCK_SIZE,
            missing=() if self._spool and self._spool.keeps_prefixes else ("hash_ids",),
        )

    def _lose(self, problem: Exception) -> None:
        """Give up the row of the request on whose behalf something failed in here."""
        exchange = CURRENT.get()
        if self._spool is None or (exchange is not None and exchange.is_lost):
            return
        if exchange is not None:
            exchange.is_lost = True
        self._spool.lose("not_recorded", problem=problem)
