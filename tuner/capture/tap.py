"""The tap on vLLM's engine, where the server hands it requests.

``generate`` of the server's one engine client is replaced by a function that calls it and passes on
what it yields. Written against vLLM 0.32's ``AsyncLLM``.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

from collections.abc import AsyncIterator
from typing import Any

from tuner.capture.call import CURRENT, Call, Exchange, queue_s
from tuner.system.contain_errors import Report, contain_errors


def attach(engine: Any, report: Report, *, keep_tokens: bool) -> bool:
    """Watch ``engine.generate`` from now on; return False where there is no such function.

    ``report`` gets what goes wrong in here; the engine never does.
    """
    generate = getattr(engine, "generate", None)
    if not callable(generate):
        return False

    def tapped(*args: Any, **kwargs: Any) -> Any:
        stream = generate(*args, **kwargs)
        exchange = CURRENT.get()
        if exchange is None:
            return stream
        call = contain_errors(report, _begin, engine, exchange, args, kwargs, keep=keep_tokens)
        return stream if call is None else _Tapped(stream, call, exchange, report)

    engine.generate = tapped
    return True


def _begin(
    engine: Any,
    exchange: Exchange,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    keep: bool,
) -> Call:
    prompt, params, request_id = (
        args[place] if place < len(args) else kwargs[name]
        for place, name in enumerate(("prompt", "sampling_params", "request_id"))
    )
    lora, session = kwargs.get("lora_request"), kwargs.get("session_id")
    call = Call(
        exchange.arrival_s,
        n=params.n,
        max_tokens=params.max_tokens,
        priority=kwargs.get("priority") or 0,
        lora=None if lora is None else str(lora.lora_name),
        session=None if session is None else str(session),
        replica=kwargs.get("data_parallel_rank"),
        cache_salt=str(_part(prompt, "cache_salt") or ""),
        images=len((_part(prompt, "mm_hashes") or {}).get("image", ())),
        stream=params.output_kind.name == "DELTA",
    )
    ids = _part(prompt, "prompt_token_ids")
    if ids is not None:
        call.input_length = len(ids)
        has_media = _part(prompt, "mm_hashes") or _part(prompt, "mm_features")
        if keep and not has_media and _part(prompt, "prompt_embeds") is None:
            call.token_ids = ids
    exchange.begin(call, lambda: _count_tokens(engine, str(request_id), call))
    return call


def _part(prompt: Any, name: str) -> Any:
    """Return a part of a prompt, which is a dict or an EngineCoreRequest."""
    return prompt.get(name) if isinstance(prompt, dict) else getattr(prompt, name, None)


class _Tapped:
    """The engine's stream of outputs, read along."""

    __slots__ = ("_call", "_exchange", "_is_counted", "_next", "_report", "_stream")

    def __init__(self, stream: Any, call: Call, exchange: Exchange, report: Report) -> None:
        self._stream, self._call, self._exchange = stream, call, exchange
        self._report, self._next = report, stream.__anext__
        self._is_counted = False
        """The engine counts the tokens itself: only the last output matters then."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            output = await self._next()
        except BaseException as problem:
            contain_errors(self._report, self._stop, problem)
            raise
        if not self._is_counted or output.finished:
            contain_errors(self._report, self._saw, output)
        return output

    async def aclose(self) -> None:
        contain_errors(self._report, self._stop, GeneratorExit())
        await self._stream.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _saw(self, output: Any) -> None:
        self._is_counted = self._call.saw(output)
        if output.finished:
            self._exchange.end_call(self._call, "finished")

    def _stop(self, problem: BaseException) -> None:
        if isinstance(problem, StopAsyncIteration):
            self._exchange.end_call(self._call, "finished")
        else:
            failed = isinstance(problem, Exception)
            self._exchange.end_call(self._call, "failed" if failed else "canceled")


def _count_tokens(engine: Any, request_id: str, call: Call) -> None:
    """Enter how many tokens the engine has generated: a reply in one piece does not show it."""
    if call.is_counted() or call.lengths:
        return
    processor = getattr(engine, "output_processor", None)
    ids_of = getattr(processor, "external_req_ids", None)
    states = getattr(processor, "request_states", {})
    if ids_of is None:
        return
    ids = ids_of.get(request_id, ())
    if not ids:
        call.lengths[0] = 0  # the engine has not even begun
    for place, state in enumerate(states[each] for each in ids if each in states):
        if (stats := getattr(state, "stats", None)) is not None:
            choice = getattr(state, "request_index", place) if call.n > 1 else 0
            call.lengths[choice] = stats.num_generation_tokens
            call.queue_s = queue_s(stats)
