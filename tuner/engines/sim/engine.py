"""A simulated engine that is running: the scheduler model on virtual time.

Of the world's numbers it shows what an engine shows: iterations and the times of tokens.
"""

import asyncio
import math
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler import model
from tuner.engines.scheduler.queue import let_go
from tuner.engines.scheduler.state import (
    DONE,
    FULL,
    OUT_OF_NOISE,
    REQUEST,
    new_requests,
    new_scheduler,
)
from tuner.engines.seam import (
    STOPPED,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.sim.noise import EngineNoise
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.engines.sim.world import World, step_law
from tuner.engines.timeouts import HangWatch
from tuner.errors import EngineError

_SETTLE_S = 1.0
"""Seconds between two looks whether an engine was ended while its last iteration is waited for."""

_ROWS = 1024
_LOG_LENGTH = 4096
_TOKEN_LENGTH = 65_536


@dataclass(slots=True)
class _Ticket:
    """The waiting task of a request."""

    reply: Reply
    output_length: int
    done: "asyncio.Future[None]"


class SimEngine:
    """A started engine. It moves when the loop has nothing else to do; see virtual_time."""

    def __init__(
        self, facts: EngineFacts, world: World, noise: EngineNoise, loop: VirtualTimeLoop
    ) -> None:
        self.facts, self.compiled = facts, list[str]()
        self._max_num_seqs = int(str(facts.arguments["max_num_seqs"]))
        self._max_num_batched_tokens = world.budget
        self._lag_s = world.step.lag
        self._law = step_law(world.step, self._max_num_seqs)
        self._scheduler = new_scheduler(
            max_num_seqs=self._max_num_seqs,
            max_num_batched_tokens=world.budget,
            block_size=world.kv.block_size,
            kv_blocks=world.kv.blocks,
            async_scheduling=world.step.async_release,
            rows=_ROWS,
            log_length=_LOG_LENGTH,
            token_length=max(_TOKEN_LENGTH, 2 * self._max_num_seqs),
        )
        self._state = self._scheduler.state[0]
        self._engine_noise = noise
        self._noise = noise.anew(loop.time())
        self._loop = loop
        self._tickets: dict[int, _Ticket] = {}
        self._logs: list[IterationLog] = []
        self._cause: EngineError | None = None
        self._kept = 0
        self._watch = HangWatch(lambda: self._kept + int(self._state["logged"]), self._end)

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        self._refuse_when_stopped()
        input_length = len(request.prompt_token_ids)
        _check_lengths(input_length, request.output_length, self.facts.max_model_len)
        row = self._submit(input_length, request.output_length)
        done = self._loop.create_future()
        self._tickets[row] = _Ticket(reply, request.output_length, done)
        try:
            with self._watch.over():
                await done
        except asyncio.CancelledError:
            model.abort(self._scheduler, row)
            raise
        finally:
            del self._tickets[row]
            self._close(row, reply)

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam. There is no prefix cache."""
        self._refuse_when_stopped()
        if self._tickets:
            raise EngineError(
                f"the limits cannot change: {len(self._tickets)} requests are in flight",
                hint="Let the replay drain first.",
            )
        for name, value, most in (
            ("max_num_seqs", max_num_seqs, self._max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens, self._max_num_batched_tokens),
        ):
            if value is not None and not 1 <= value <= most:
                raise EngineError(
                    f"{name} {value} is not between 1 and {most}",
                    hint="Start the engine with the largest value that will be asked of it.",
                )
            if value is not None:
                self._state[name] = value
        await self.iterations()

    async def iterations(self) -> IterationLog:
        """See the seam."""
        self._refuse_when_stopped()
        if not self._tickets:
            with self._watch.over():
                await self._settle()
        self._refuse_when_stopped()
        self._keep_log()
        logs, self._logs = self._logs, []
        return np.concatenate(logs)

    async def stop(self) -> None:
        """See the seam."""
        if self._cause is None:
            self._end(STOPPED)

    def _end(self, cause: EngineError) -> None:
        self._cause = cause
        self._loop.detach(self)
        for ticket in self._tickets.values():
            if not ticket.done.done():
                ticket.done.set_exception(cause)

    def advance(self, until: float) -> float:
        """See virtual_time.Process."""
        while True:
            news = model.advance(
                self._scheduler, self._law, self._noise, until, stop_at_finish=True
            )
            if news == OUT_OF_NOISE:
                self._noise = self._engine_noise.until(float(self._state["now"]))
                self._state["jitter"] = 0
                continue
            self._hand_out()
            if news == FULL:
                self._keep_log()
                continue
            return float(self._state["now"]) if news == DONE else until

    def next_event_s(self) -> float:
        """See virtual_time.Process."""
        state = self._state
        if state["in_flight"]:
            return float(state["end"])
        if state["arrived"] < state["rows"]:
            return float(self._scheduler.requests[state["arrived"]]["queued_s"])
        return math.inf

    def _submit(self, input_length: int, output_length: int) -> int:
        """Enter a request; return its row."""
        state = self._state
        if not self._tickets:
            state["rows"] = state["arrived"] = 0
        row = int(state["rows"])
        if row == self._scheduler.requests.size:
            more = np.zeros(row, REQUEST)
            self._scheduler = self._scheduler._replace(
                requests=np.concatenate((self._scheduler.requests, more))
            )
        self._scheduler.requests[row : row + 1] = new_requests(
            self._loop.time() + self._lag_s, input_length, output_length
        )
        state["rows"] = row + 1
        return row

    def _hand_out(self) -> None:
        """Fill the replies with the new tokens, and wake those who wait for the last one."""
        count = self._state["tokens"]
        if count == 0:
            return
        tokens = self._scheduler.tokens
        rows = tokens.row[:count].tolist()
        self._state["tokens"] = 0
        for row, at_s in zip(rows, tokens.at_s[:count].tolist(), strict=True):
            if row in self._tickets:
                self._tickets[row].reply.seen_s.append(at_s)
        for row in dict.fromkeys(rows):
            if row in self._tickets:
                self._account(row, self._tickets[row])

    def _account(self, row: int, ticket: _Ticket) -> None:
        reply = ticket.reply
        is_first = not reply.output_tokens
        reply.output_tokens = len(reply.seen_s)
        reply.first_s, reply.last_s = reply.seen_s[0], reply.seen_s[-1]
        if is_first:
            self._close(row, reply)
        if reply.output_tokens == ticket.output_length and not ticket.done.done():
            ticket.done.set_result(None)

    def _close(self, row: int, reply: Reply) -> None:
        """Enter what only the scheduler knows of a request."""
        request = self._scheduler.requests[row]
        reply.preemptions, reply.cached_tokens = int(request["preemptions"]), 0
        if request["scheduled_s"] >= 0:
            reply.queued_s = float(request["queued_s"])
            reply.scheduled_s = float(request["scheduled_s"])

    async def _settle(self) -> None:
        """Let an iteration end whose requests have all been aborted; then all is as at a start."""
        state = self._state
        end_s = float(state["end"]) if state["in_flight"] else 0.0
        while (left_s := end_s - self._loop.time()) > 0 and self._cause is None:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, _SETTLE_S))
        let_go(state, self._scheduler.requests, self._scheduler.running)
        self._noise = self._engine_noise.anew(self._loop.time())
        self._state["jitter"] = 0

    def _keep_log(self) -> None:
        self._logs.append(self._scheduler.log[: self._state["logged"]].copy())
        self._kept += int(self._state["logged"])
        self._state["logged"] = 0

    def _refuse_when_stopped(self) -> None:
        if self._cause is not None:
            raise self._cause


def _check_lengths(input_length: int, output_length: int, max_model_len: int) -> None:
    if input_length < 1:
        raise RequestFailedError("the prompt is empty")
    if output_length < 1:
        raise RequestFailedError(f"output_length is {output_length}; at least 1 is generated")
    if input_length + output_length > max_model_len:
        raise RequestFailedError(
            f"{input_length} prompt tokens and {output_length} output tokens are more than "
            f"max_model_len, {max_model_len}"
        )
