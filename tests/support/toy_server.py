"""A small server with the recorder in it, on a real socket; with an engine behind it, or not."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
starlette = pytest.importorskip("starlette")

from starlette.applications import Starlette  # noqa: E402 - skipped where it is not
from starlette.middleware import Middleware  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import JSONResponse, Response, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

from tuner.capture import TraceRecorder  # noqa: E402


class Kind(Enum):
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class Choice:
    index: int
    token_ids: list[int]
    finish_reason: str | None


@dataclass
class Output:
    prompt_token_ids: list[int]
    outputs: list[Choice]
    finished: bool
    metrics: Any = field(default_factory=lambda: SimpleNamespace(queued_ts=5.0, scheduled_ts=5.25))


class ToyEngine:
    """Generates as many tokens as it is asked for."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(model="toy")

    async def generate(
        self,
        prompt: dict[str, Any],
        sampling_params: SimpleNamespace,
        request_id: str,
        *,
        session_id: str | None = None,
    ) -> AsyncIterator[Output]:
        del request_id, session_id
        ids, n, length = prompt["prompt_token_ids"], sampling_params.n, sampling_params.max_tokens
        if ids[0] == 666:
            raise RuntimeError("the device is on fire")
        if sampling_params.output_kind is Kind.FINAL_ONLY:
            yield Output(ids, [Choice(k, [7] * (length - k), "length") for k in range(n)], True)
            return
        for token in range(length):
            last = token == length - 1
            yield Output(ids, [Choice(0, [7], "stop" if last else None)], last)


def _usage(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": len(body["prompt"]),
        "completion_tokens": body["max_tokens"] * body.get("n", 1),
    }


async def _complete(request: Request) -> Response:
    body = await request.json()
    if body.get("refuse"):
        return JSONResponse({"error": "no"}, status_code=body["refuse"])
    engine = getattr(request.app.state, "engine_client", None)
    if engine is None:
        return JSONResponse({"usage": _usage(body)})
    params = SimpleNamespace(
        n=body.get("n", 1),
        max_tokens=body["max_tokens"],
        output_kind=Kind.DELTA if body.get("stream") else Kind.FINAL_ONLY,
    )
    prompt = {"type": "token", "prompt_token_ids": body["prompt"]}
    stream = engine.generate(prompt, params, "cmpl-1", session_id=body.get("session"))

    async def events() -> AsyncIterator[bytes]:
        async for output in stream:
            yield b"data: %d\n\n" % len(output.outputs)

    if body.get("stream"):
        return StreamingResponse(events(), media_type="text/event-stream")
    await anext(stream)
    return JSONResponse({"usage": _usage(body)})


def application(engine: ToyEngine | None) -> Starlette:
    routes = [
        Route(path, _complete, methods=["POST"]) for path in ("/v1/completions", "/v1/embeddings")
    ]
    app = Starlette(routes=routes, middleware=[Middleware(TraceRecorder)])
    if engine is not None:
        app.state.engine_client = engine
    return app


class _PromptServer(uvicorn.Server):  # type: ignore[misc, name-defined, unused-ignore]
    """Looks a hundred times a second whether it should end, and not ten times."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 - should_exit tells nobody
            await asyncio.sleep(0.01)


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """Serve on a free port until the block ends; the server then stops as at a SIGTERM."""
    server = _PromptServer(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    tick = threading.Event()
    try:
        while not server.started:
            assert thread.is_alive()
            tick.wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
