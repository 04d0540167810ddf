"""Watch what goes into vLLM's engine and what comes out, where the server hands it over.

``generate`` of the server's one engine client is replaced by a function that calls it, and hands on
untouched what it yields. Written against vLLM 0.32's ``AsyncLLM``; a client that is not like it is
left alone.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

from collections.abc import AsyncIterator
from typing import Any

from tuner.capture.call import Call, queue_s
from tuner.capture.exchange import CURRENT, Exchange
from tuner.system.contain_errors import Report, contain_errors


def attach(engine: Any, report: Report, *, keep_tokens: bool) -> bool:
    """Watch ``engine.generate`` from now on; return False where there is no such thing.

    ``report`` gets what goes wrong in here, once each; the engine never does.
    """
    generate = getattr(engine, "generate", None)
    if not callable(generate):
        return False

    def tapped(*args: Any, **kwargs: Any) -> Any:
        stream = generate(*args, **kwargs)
        exchange = CURRENT.get()
        if exchange is None:
            return stream
        call = contain_errors(
            report, _begun, engine, exchange, args, kwargs, keep_tokens=keep_tokens
        )
        return stream if call is None else _Tapped(stream, call, exchange, report)

    engine.generate = tapped
    return True


def _begun(
    engine: Any,
    exchange: Exchange,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    keep_tokens: bool,
) -> Call:
    prompt, params, request_id = (
        args[place] if place < len(args) else kwargs[name]
        for place, name in enumerate(("prompt", "sampling_params", "request_id"))
    )
    lora, session = kwargs.get("lora_request"), kwargs.get("session_id")
    call = Call(
        arrival_s=exchange.call_arrival_s(),
        n=params.n,
        max_tokens=params.max_tokens,
        priority=kwargs.get("priority") or 0,
        lora=None if lora is None else str(lora.lora_name),
        session=None if session is None else str(session),
        replica=kwargs.get("data_parallel_rank"),
    )
    ids = _of(prompt, "prompt_token_ids")
    if ids is not None:
        call.input_length = len(ids)
        has_media = _of(prompt, "mm_hashes") or _of(prompt, "mm_features")
        if keep_tokens and not has_media and _of(prompt, "prompt_embeds") is None:
            call.token_ids = ids
    call.cache_salt = str(_of(prompt, "cache_salt") or "")
    call.images = len((_of(prompt, "mm_hashes") or {}).get("image", ()))
    call.stream = params.output_kind.name == "DELTA"
    exchange.begin(call, lambda: _look_up(engine, str(request_id), call))
    return call


def _of(prompt: Any, name: str) -> Any:
    """Return a part of a prompt, which is a dict, or was an EngineCoreRequest in some versions."""
    return prompt.get(name) if isinstance(prompt, dict) else getattr(prompt, name, None)


class _Tapped:
    """The engine's stream of outputs, with someone reading along."""

    __slots__ = ("_call", "_counted", "_exchange", "_next", "_report", "_stream")

    def __init__(self, stream: Any, call: Call, exchange: Exchange, report: Report) -> None:
        self._stream, self._call, self._exchange = stream, call, exchange
        self._report, self._next = report, stream.__anext__
        self._counted = False
        """The engine counts the tokens itself: of each output only the last matters."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            output = await self._next()
        except BaseException as problem:
            contain_errors(self._report, self._stopped, problem)
            raise
        if not self._counted or output.finished:
            contain_errors(self._report, self._saw, output)
        return output

    async def aclose(self) -> None:
        contain_errors(self._report, self._stopped, GeneratorExit())
        await self._stream.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _saw(self, output: Any) -> None:
        self._counted = self._call.saw(output)
        if output.finished:
            self._exchange.finished(self._call)

    def _stopped(self, problem: BaseException) -> None:
        if isinstance(problem, StopAsyncIteration):
            self._call.ends("ok")
            self._exchange.finished(self._call)
        else:
            self._exchange.stopped(self._call, failed=isinstance(problem, Exception))


def _look_up(engine: Any, request_id: str, call: Call) -> None:
    """Enter how many tokens the engine has generated: a reply in one piece does not show it."""
    if call.counts() or call.lengths:
        return
    processor = getattr(engine, "output_processor", None)
    known = getattr(processor, "external_req_ids", None)
    states = getattr(processor, "request_states", {})
    if known is None:
        return
    if not (ids := known.get(request_id, ())):
        call.lengths[0] = 0  # it has not even begun
    for place, state in enumerate(states[one] for one in ids if one in states):
        if (stats := getattr(state, "stats", None)) is not None:
            choice = getattr(state, "request_index", place) if call.n > 1 else 0
            call.lengths[choice] = stats.num_generation_tokens
            call.queue_s = queue_s(stats)
