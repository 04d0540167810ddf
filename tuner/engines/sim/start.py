"""Simulated engines on a machine that a world file describes: the scheduler model on virtual time.

Of the world's numbers they show what an engine shows: iterations and the times of tokens.
"""

import asyncio
import platform
from collections.abc import Mapping
from dataclasses import dataclass

import numba
from msgspec.structs import replace

from tuner.engines.scheduler import model
from tuner.engines.scheduler.state import DONE, FULL, Noise, new_requests, new_scheduler
from tuner.engines.seam import (
    STOPPED,
    ArgumentValue,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
)
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.engines.sim.world import World, engine_noise, machine_noise, step_law
from tuner.errors import EngineError

_ROWS, _LOG_LENGTH = 1 << 20, 1 << 22
"""Requests without a pause, and iterations of a replay: more than any has. Memory is taken by those
that there are."""

_TOKEN_LENGTH = 65_536


@dataclass(slots=True)
class Machine:
    """What the engines that are started on one machine, one after the other, have in common."""

    noise: Noise
    started: int = 0


class SimEngine:
    """A started engine. It moves when the loop has nothing else to do; see virtual_time."""

    def __init__(
        self, facts: EngineFacts, world: World, machine: Machine, loop: VirtualTimeLoop
    ) -> None:
        self.facts, self._world, self._loop = facts, world, loop
        self._machine, self._number = machine, machine.started
        max_num_seqs = int(str(facts.arguments["max_num_seqs"]))
        self._law = step_law(world.step, max_num_seqs)
        self._scheduler = new_scheduler(
            rows=_ROWS,
            log_length=_LOG_LENGTH,
            token_length=max(_TOKEN_LENGTH, 2 * max_num_seqs),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=world.budget,
            block_size=world.kv.block_size,
            kv_blocks=world.kv.blocks,
            async_scheduling=world.step.async_release,
        )
        self._state = self._scheduler.state[0]
        self._waiting: dict[int, tuple[EngineRequest, Reply, asyncio.Future[None]]] = {}
        """By the request's row."""

        self._is_stopped = False
        self._begin_anew()
        loop.attach(self.advance)

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""
        self._check_running()
        self.facts.check_length(request)
        row = self._submit(len(request.prompt_token_ids), request.output_length)
        done = self._loop.create_future()
        self._waiting[row] = request, reply, done
        try:
            await done
        except asyncio.CancelledError:
            model.abort(self._scheduler, row)
            raise
        finally:
            del self._waiting[row]
            state, reply.cached_tokens = self._scheduler.requests[row], 0
            if state["scheduled_s"] >= 0:
                reply.queued_s = float(state["queued_s"])
                reply.scheduled_s = float(state["scheduled_s"])

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam. There is no prefix cache."""
        self._check_running()
        self.facts.check_limits(max_num_seqs, max_num_batched_tokens, in_flight=len(self._waiting))
        state = self._state
        state["max_num_seqs"] = max_num_seqs or state["max_num_seqs"]
        state["max_num_batched_tokens"] = max_num_batched_tokens or state["max_num_batched_tokens"]
        await self.iterations()

    async def iterations(self) -> IterationLog:
        """See the seam."""
        self._check_running()
        state = self._state
        if not self._waiting:
            if state["in_flight"]:  # of requests that have all been aborted
                await asyncio.sleep(max(0.0, float(state["end"]) - self._loop.time()))
                self._check_running()
            self._begin_anew()
        logged, state["logged"] = int(state["logged"]), 0
        return self._scheduler.log[:logged].copy()

    async def stop(self) -> None:
        """See the seam."""
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.attach(None)
            for _, _, done in self._waiting.values():
                if not done.done():
                    done.set_exception(STOPPED)

    def _check_running(self) -> None:
        if self._is_stopped:
            raise STOPPED

    def advance(self, until: float) -> float:
        """See virtual_time.Advance."""
        news = FULL
        while news == FULL:
            news = model.advance(self._scheduler, self._law, self._noise, until, True)
            self._hand_out()
        return float(self._state["now"]) if news == DONE else until

    def _submit(self, input_length: int, output_length: int) -> int:
        """Enter a request; return its row."""
        state, queued_s = self._state, self._loop.time() + self._world.step.lag
        if not (self._waiting or state["running"] or state["waiting"]):
            state["rows"] = state["arrived"] = state["head"] = 0
        row = int(state["rows"])
        rows = new_requests(queued_s, input_length, output_length)
        self._scheduler.requests[row : row + 1] = rows
        state["rows"] = row + 1
        return row

    def _hand_out(self) -> None:
        """Fill the replies with the new tokens, and wake those who wait for the last one."""
        count, tokens = int(self._state["tokens"]), self._scheduler.tokens
        self._state["tokens"] = 0
        for row, at_s in zip(
            tokens.row[:count].tolist(), tokens.at_s[:count].tolist(), strict=True
        ):
            if row not in self._waiting:
                continue
            request, reply, done = self._waiting[row]
            reply.seen_s.append(at_s)
            reply.output_tokens += 1
            reply.first_s, reply.last_s = reply.seen_s[0], at_s
            if reply.output_tokens == request.output_length and not done.done():
                done.set_result(None)

    def _begin_anew(self) -> None:
        """Be as at a start, whatever came before: so is the noise."""
        model.let_go(self._state, self._scheduler.requests, self._scheduler.running)
        self._state["jitter"], now_s = 0, self._loop.time()
        self._noise = engine_noise(
            self._machine.noise, self._world, number=self._number, now_s=now_s
        )


VOCAB_SIZE = 32_000
"""Any will do: the tokens themselves are never looked at."""

VARIABLE = ("max_num_batched_tokens", "num_gpu_blocks_override")
"""Arguments in which engines of one machine may differ besides ``max_num_seqs``."""


class SimStarter:
    """Starts engines on one simulated machine, whose noise continues from engine to engine."""

    def __init__(
        self,
        world: World,
        *,
        model: str | None = None,
        machine: Machine | None = None,
        ranks: int = 1,
    ) -> None:
        """``ranks``: of a data-parallel server, of which each engine is one."""
        self.ranks, self._world, self._model = ranks, world, model or f"sim:{world.name}"
        self.machine = machine or Machine(machine_noise(world))
        self.device: Mapping[str, ArgumentValue] = {
            "name": f"simulated:{world.name}",
            "digest": world.digest,
        }
        self.versions = {"python": platform.python_version(), "numba": numba.__version__}

    def varied(self, arguments: Mapping[str, ArgumentValue]) -> "SimStarter":
        """Return what starts engines on the same machine with these engine arguments changed.

        Raises EngineError for what a simulated engine cannot change, or has no memory for.
        """
        world = self._world
        most = {"max_num_batched_tokens": 2**31 - 1, "num_gpu_blocks_override": world.kv.blocks}
        numbers = {
            "max_num_batched_tokens": world.budget,
            "num_gpu_blocks_override": world.kv.blocks,
        }
        for name, value in arguments.items():
            if not isinstance(value, int) or not 1 <= value <= most.get(name, 0):
                raise EngineError(
                    f"a simulated engine takes no {name}={value}",
                    hint="It takes max_num_batched_tokens, and num_gpu_blocks_override up to the "
                    "kv.blocks of its world file, where all else is written.",
                )
            numbers[name] = value
        budget, blocks = numbers.values()
        changed = replace(world, budget=budget, kv=replace(world.kv, blocks=blocks))
        result = SimStarter(changed, model=self._model, machine=self.machine, ranks=self.ranks)
        result.device = self.device
        return result

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        """See the seam. Raises EngineError for a cap that is not from 1 to the token budget."""
        world = self._world
        if not 1 <= max_num_seqs <= world.budget:
            raise EngineError(
                f"max_num_seqs {max_num_seqs} is not between 1 and max_num_batched_tokens, "
                f"{world.budget}",
                hint="Lower --ceiling, or raise budget in the world file.",
            )
        return {
            "model": self._model,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": world.budget,
            "max_model_len": world.kv.blocks * world.kv.block_size,
            "block_size": world.kv.block_size,
            "num_gpu_blocks_override": world.kv.blocks,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": False,
            "async_scheduling": world.step.async_release,
        }

    async def start(self, *, max_num_seqs: int) -> SimEngine:
        """See the seam. The running loop is of virtual time."""
        loop, world = asyncio.get_running_loop(), self._world
        assert isinstance(loop, VirtualTimeLoop)
        arguments = self.resolve(max_num_seqs=max_num_seqs)
        await asyncio.sleep(world.engine_start)
        self.machine.started += 1
        facts = EngineFacts(
            engine="sim",
            arguments=arguments,
            max_model_len=world.kv.blocks * world.kv.block_size,
            vocab_size=VOCAB_SIZE,
            block_size=world.kv.block_size,
            kv_blocks=world.kv.blocks,
            start_s=world.engine_start,
            versions=self.versions,
            device=self.device,
        )
        return SimEngine(facts, world, self.machine, loop)
