"""A simulated engine that is running: the scheduler model on virtual time.

Of the world's numbers it shows what an engine shows: iterations and the times of tokens.
"""

import asyncio
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler import model
from tuner.engines.scheduler.state import (
    DONE,
    FULL,
    OUT_OF_NOISE,
    REQUEST,
    new_requests,
    new_scheduler,
)
from tuner.engines.seam import STOPPED, EngineFacts, EngineRequest, IterationLog, Reply
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
        max_num_seqs = int(str(facts.arguments["max_num_seqs"]))
        self._lag_s, self._law = world.step.lag, step_law(world.step, max_num_seqs)
        self._scheduler = new_scheduler(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=world.budget,
            block_size=world.kv.block_size,
            kv_blocks=world.kv.blocks,
            async_scheduling=world.step.async_release,
            rows=_ROWS,
            log_length=_LOG_LENGTH,
            token_length=max(_TOKEN_LENGTH, 2 * max_num_seqs),
        )
        self._state = self._scheduler.state[0]
        self._engine_noise, self._noise = noise, noise.anew(loop.time())
        self._loop = loop
        self._tickets: dict[int, _Ticket] = {}
        self._logs: list[IterationLog] = []
        self._cause: EngineError | None = None
        self._kept = 0
        self._watch = HangWatch(lambda: self._kept + int(self._state["logged"]), self._end)

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""
        self._check_running()
        self.facts.check_length(request)
        row = self._submit(len(request.prompt_token_ids), request.output_length)
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
        self._check_running()
        self.facts.check_limits(max_num_seqs, max_num_batched_tokens, in_flight=len(self._tickets))
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        for name, value in limits.items():
            self._state[name] = value or self._state[name]
        await self.iterations()

    async def iterations(self) -> IterationLog:
        """See the seam."""
        self._check_running()
        if not self._tickets:
            with self._watch.over():
                await self._settle()
        self._check_running()
        self._keep_log()
        logs, self._logs = self._logs, []
        return np.concatenate(logs)

    async def stop(self) -> None:
        """See the seam."""
        if self._cause is None:
            self._end(STOPPED)

    def _end(self, cause: EngineError) -> None:
        self._cause = cause
        self._loop.detach()
        for ticket in self._tickets.values():
            if not ticket.done.done():
                ticket.done.set_exception(cause)

    def _check_running(self) -> None:
        if self._cause is not None:
            raise self._cause

    def advance(self, until: float) -> float:
        """See virtual_time.VirtualProcess."""
        state = self._state
        while True:
            news = model.advance(
                self._scheduler, self._law, self._noise, until, stop_at_finish=True
            )
            if news == OUT_OF_NOISE:
                self._noise, state["jitter"] = self._engine_noise.until(float(state["now"])), 0
                continue
            self._hand_out()
            if news != FULL:
                return float(state["now"]) if news == DONE else until
            self._keep_log()

    def _submit(self, input_length: int, output_length: int) -> int:
        """Enter a request; return its row."""
        state = self._state
        if not self._tickets:
            state["rows"] = state["arrived"] = 0
        row, requests = int(state["rows"]), self._scheduler.requests
        if row == requests.size:
            requests = np.concatenate((requests, np.zeros(row, REQUEST)))
            self._scheduler = self._scheduler._replace(requests=requests)
        queued_s = self._loop.time() + self._lag_s
        requests[row : row + 1] = new_requests(queued_s, input_length, output_length)
        state["rows"] = row + 1
        return row

    def _hand_out(self) -> None:
        """Fill the replies with the new tokens, and wake those who wait for the last one."""
        count, tokens = int(self._state["tokens"]), self._scheduler.tokens
        self._state["tokens"] = 0
        rows, times_s = tokens.row[:count].tolist(), tokens.at_s[:count].tolist()
        for row, at_s in zip(rows, times_s, strict=True):
            if (ticket := self._tickets.get(row)) is None:
                continue
            reply = ticket.reply
            reply.seen_s.append(at_s)
            reply.output_tokens += 1
            reply.first_s, reply.last_s = reply.seen_s[0], at_s
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
        model.let_go(state, self._scheduler.requests, self._scheduler.running)
        self._noise, state["jitter"] = self._engine_noise.anew(self._loop.time()), 0

    def _keep_log(self) -> None:
        logged = int(self._state["logged"])
        self._logs.append(self._scheduler.log[:logged].copy())
        self._kept += logged
        self._state["logged"] = 0
