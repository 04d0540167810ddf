"""The control socket of an engine that tuner has started itself, asked from an event loop."""

import asyncio
import base64
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tuner.engines.seam import (
    ITERATION,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
    Stalls,
)
from tuner.engines.server import control_client
from tuner.engines.server.protocol import (
    Answer,
    AskState,
    Request,
    ResetPrefixCache,
    Served,
    SetLimits,
    State,
    TakeLog,
)
from tuner.engines.timeouts import STALL_S, MoveWatch
from tuner.errors import EngineError, InputError, StoodStillError, TunerError

OPENS_S = 20.0
"""Time after an engine is ready in which its socket may still be missing: its thread looks
around."""

DRAIN_S = 10.0
"""Time that aborted requests may take to leave an engine: an iteration or three."""

_LOOK_S = 0.02

Dead = Callable[[], EngineError | None]
"""Returns what the engine died of; None while it lives."""

End = Callable[[StoodStillError], None]
"""Ends the engine's processes, which are said to have died of this."""


class EngineControl:
    """Requests in flight, limits, idleness, prefix cache and log of one engine, which is ended when
    it stands still for too long. Every method may raise EngineError."""

    def __init__(self, socket: Path, *, dead: Dead, end: End, doing: Callable[[], str]) -> None:
        self._socket, self._dead = socket, dead
        self.watch = MoveWatch(self._look, end, doing)
        self._in_flight = 0
        self._taking = asyncio.Lock()
        self._rows, self._served = bytearray(), list[Served]()
        """What was looked at, and nobody has taken yet."""

    async def opened(self) -> State:
        """Wait until the engine's thread listens, begin its log, and return its state.

        Raises EngineError when the engine dies, or has not listened within OPENS_S.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + OPENS_S
        while True:
            with contextlib.suppress(InputError):
                state = await asyncio.to_thread(control_client.state, self._socket)
                await self.take_log()
                return state
            if (dead := self._dead()) is not None:
                raise dead
            if loop.time() > until_s:
                raise EngineError(
                    f"the engine opened no control socket at {self._socket}",
                    hint="Its log says why; a TMPDIR that nobody else can write to is needed.",
                )
            await asyncio.sleep(_LOOK_S)

    async def state(self) -> State:
        answer = await self._ask(AskState())
        assert answer.state is not None  # control_client has checked
        return answer.state

    @contextmanager
    def generating(self, reply: Reply) -> Iterator[None]:
        """Count a request as in flight, and watch its reply."""
        self._in_flight += 1
        try:
            with self.watch.over(reply):
                yield
        finally:
            self._in_flight -= 1

    async def is_idle(self) -> bool:
        state = await self.state()
        return not (state.running or state.waiting or state.in_flight or self._in_flight)

    async def set_limits(
        self, built: EngineFacts, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        """Set the limits of an idle engine, both at most what it was built for.

        Raises EngineError too when something runs or waits, or a value is out of range.
        """
        if self._in_flight:
            raise EngineError(
                "the limits cannot change: requests are in flight",
                hint="Let the replay drain first.",
            )
        await self._drained()
        for name, value, least in (
            ("max_num_seqs", max_num_seqs, 1),
            ("max_num_batched_tokens", max_num_batched_tokens, max_num_seqs),
        ):
            most = int(str(built.arguments[name]))
            if not least <= value <= most:
                raise EngineError(
                    f"{name} {value} is not between {least} and {most}",
                    hint="Start the engine with the largest value that will be asked of it.",
                )
        await self._ask(
            SetLimits(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                idle=True,
                reason="tuner measures",
            )
        )

    async def reset_prefix_cache(self) -> None:
        if not self._in_flight:  # else it is refused at once
            await self._drained()
        await self._ask(ResetPrefixCache())

    async def take_log(self) -> tuple[IterationLog, list[Served]]:
        """Return the iterations and the finished requests since the last call.

        Raises EngineError too when the engine has lost a part of its log.
        """
        with self.watch.over():
            await self._look()
        rows, served = bytes(self._rows), self._served
        self._rows, self._served = bytearray(), []
        return np.frombuffer(rows, dtype=ITERATION), served

    async def _look(self) -> int:
        """Read the engine's log; return how many iterations were in it."""
        async with self._taking:
            before = len(self._rows)
            while True:
                log = (await self._ask(TakeLog(go_on=True))).log
                if log is None or log.lost:
                    lost = "its log" if log is None else f"{log.lost} entries of its log"
                    raise EngineError(
                        f"the engine lost {lost}", hint="Measure in shorter steps: see --step."
                    )
                self._rows += base64.b64decode(log.rows)
                self._served += log.served
                if not log.more:
                    return (len(self._rows) - before) // ITERATION.itemsize

    async def _drained(self) -> None:
        """Wait until what was aborted has left the engine, which computes the batches that were
        under way to their end: with asynchronous scheduling several."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DRAIN_S
        with self.watch.over():
            while not await self.is_idle() and (  # noqa: ASYNC110 - no event
                loop.time() < until_s or self.watch.stalls.now_s >= STALL_S
            ):
                await asyncio.sleep(_LOOK_S)

    async def _ask(self, request: Request) -> Answer:
        try:
            return await asyncio.to_thread(control_client.ask, self._socket, request)
        except TunerError as problem:
            if (dead := self._dead()) is not None:
                raise dead from problem
            raise EngineError(f"the engine refuses: {problem}", hint=problem.hint) from problem


class ControlledEngine:
    """The part of an engine that its control socket answers. See the seam: Engine."""

    facts: EngineFacts

    def __init__(self, control: EngineControl) -> None:
        self._control = control
        self._stopped = False

    @property
    def stalls(self) -> Stalls:
        return self._control.watch.stalls

    async def set_limits(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._check_running()
        await self._control.set_limits(
            self.facts, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )

    async def is_idle(self) -> bool:
        self._check_running()
        return await self._control.is_idle()

    async def reset_prefix_cache(self) -> None:
        self._check_running()
        await self._control.reset_prefix_cache()

    def _check_running(self) -> None:
        if self._stopped:
            raise EngineError("the engine is stopped", hint="Start another one.")

    def _check_length(self, request: EngineRequest) -> None:
        """Refuse what vLLM would refuse, or cut short without a word."""
        length = len(request.prompt_token_ids) + request.output_length
        if length > self.facts.max_model_len:
            raise RequestFailedError(
                f"{length} tokens of prompt and output, max_model_len is {self.facts.max_model_len}"
            )
