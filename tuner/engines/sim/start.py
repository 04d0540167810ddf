"""Simulated engines on a machine that a world file describes: the scheduler model on virtual time.

Of the world's numbers they show what an engine shows: iterations and the times of tokens.
"""

import asyncio
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np

from tuner.engines.scheduler import model
from tuner.engines.scheduler.state import DONE, FULL, REQUEST, Noise, new_requests, new_scheduler
from tuner.engines.seam import (
    STOPPED,
    ArgumentValue,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
)
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.engines.sim.world import World, WorldKv, engine_noise, machine_noise, step_law
from tuner.errors import EngineError

_ROWS = 1024
_LOG_LENGTH = 4096
_TOKEN_LENGTH = 65_536

_Waiting = tuple[EngineRequest, Reply, asyncio.Future[None]]


class SimEngine:
    """A started engine. It moves when the loop has nothing else to do; see virtual_time."""

    def __init__(
        self,
        facts: EngineFacts,
        world: World,
        noise_from: Callable[[float], Noise],
        loop: VirtualTimeLoop,
    ) -> None:
        """``noise_from`` returns what it meets after having been idle until a time."""
        self.facts = facts
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
        self._noise_from, self._loop = noise_from, loop
        self._waiting: dict[int, _Waiting] = {}
        """By the request's row."""

        self._logs: list[IterationLog] = []
        self._is_stopped = False
        self._begin_anew()

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
            state = self._scheduler.requests[row]
            reply.cached_tokens = 0
            if state["scheduled_s"] >= 0:
                reply.queued_s = float(state["queued_s"])
                reply.scheduled_s = float(state["scheduled_s"])

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam. There is no prefix cache."""
        self._check_running()
        self.facts.check_limits(max_num_seqs, max_num_batched_tokens, in_flight=len(self._waiting))
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        for name, value in limits.items():
            self._state[name] = value or self._state[name]
        await self.iterations()

    async def iterations(self) -> IterationLog:
        """See the seam."""
        self._check_running()
        if not self._waiting:
            if self._state["in_flight"]:  # of requests that have all been aborted
                await asyncio.sleep(max(0.0, float(self._state["end"]) - self._loop.time()))
            self._begin_anew()
        self._check_running()
        self._keep_log()
        logs, self._logs = self._logs, []
        return np.concatenate(logs)

    async def stop(self) -> None:
        """See the seam."""
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.detach()
            for _, _, done in self._waiting.values():
                if not done.done():
                    done.set_exception(STOPPED)

    def _check_running(self) -> None:
        if self._is_stopped:
            raise STOPPED

    def advance(self, until: float) -> float:
        """See virtual_time.Advance."""
        while True:
            news = model.advance(
                self._scheduler, self._law, self._noise, until, stop_at_finish=True
            )
            self._hand_out()
            if news != FULL:
                return float(self._state["now"]) if news == DONE else until
            self._keep_log()

    def _submit(self, input_length: int, output_length: int) -> int:
        """Enter a request; return its row."""
        state = self._state
        if not (self._waiting or state["running"] or state["waiting"]):
            state["rows"] = state["arrived"] = state["head"] = 0
        row, requests = int(state["rows"]), self._scheduler.requests
        if row == requests.size:
            requests = np.concatenate((requests, np.zeros(row, REQUEST)))
            queue = np.concatenate((self._scheduler.queue, np.zeros(row, np.int64)))
            self._scheduler = self._scheduler._replace(requests=requests, queue=queue)
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
            if row not in self._waiting:
                continue
            request, reply, done = self._waiting[row]
            reply.seen_s.append(at_s)
            reply.output_tokens += 1
            reply.first_s, reply.last_s = reply.seen_s[0], at_s
            if reply.output_tokens == request.output_length and not done.done():
                done.set_result(None)

    def _begin_anew(self) -> None:
        """Be as at a start: so an interrupted run meets the noise that it would have met."""
        model.let_go(self._state, self._scheduler.requests, self._scheduler.running)
        self._noise, self._state["jitter"] = self._noise_from(self._loop.time()), 0

    def _keep_log(self) -> None:
        logged = int(self._state["logged"])
        self._logs.append(self._scheduler.log[:logged].copy())
        self._state["logged"] = 0


VOCAB_SIZE = 32_000
"""Any will do: the tokens themselves are never looked at."""

VARIABLE = ("max_num_batched_tokens", "num_gpu_blocks_override", "block_size")
"""Arguments in which engines of one machine may differ besides ``max_num_seqs``."""


@dataclass(slots=True)
class _Line:
    """The engines that were started on one machine, one after the other."""

    machine: Noise
    started: int = 0
    lost: int | None = None
    """The size of one that an interruption ended."""


class SimStarter:
    """Starts engines on one simulated machine, whose noise continues from engine to engine."""

    def __init__(
        self,
        world: World,
        *,
        model: str | None = None,
        line: _Line | None = None,
        ranks: int = 1,
    ) -> None:
        """``ranks``: of a data-parallel server, of which each engine is one."""
        self.ranks, self._world = ranks, world
        self._model = model or f"sim:{world.name}"
        self._line = line or _Line(machine_noise(world))

    @property
    def device(self) -> Mapping[str, ArgumentValue]:
        """Return the identity of the simulated hardware."""
        return {"name": f"simulated:{self._world.name}", "digest": self._world.digest}

    @property
    def versions(self) -> Mapping[str, str]:
        """Package → version, of those that decide what is simulated."""
        return {"python": platform.python_version(), "numba": numba.__version__}

    def continue_after(self, sizes: Sequence[int], *, lost: bool = True) -> None:
        """Take up an interrupted run that had started engines of these sizes, in order.

        The last of them was ``lost`` with the run, unless it had done its work. Started again it is
        the same engine, and no time passes.
        """
        self._line.started = len(sizes)
        self._line.lost = sizes[-1] if sizes and lost else None

    def varied(self, arguments: Mapping[str, ArgumentValue]) -> "SimStarter":
        """Return what starts engines on the same machine with these engine arguments changed.

        Raises EngineError for what a simulated engine cannot change, or has no memory for.
        """
        numbers = {name: value for name, value in arguments.items() if isinstance(value, int)}
        for name, value in arguments.items():
            if name not in VARIABLE or numbers.get(name, 0) < 1:
                raise EngineError(
                    f"a simulated engine takes whole numbers from 1 for {', '.join(VARIABLE)}, "
                    f"not {name}={value}",
                    hint="Leave it out, or write it into the world file.",
                )
        world = self._world
        memory = world.kv.blocks * world.kv.block_size
        size = numbers.get("block_size", world.kv.block_size)
        blocks = numbers.get("num_gpu_blocks_override", memory // size)
        if not 1 <= blocks <= memory // size:
            raise EngineError(
                f"{blocks} blocks of {size} tokens do not fit the {memory} tokens of memory",
                hint="Lower num_gpu_blocks_override or block_size.",
            )
        kv = WorldKv(blocks=blocks, block_size=size)
        budget = numbers.get("max_num_batched_tokens", world.budget)
        changed = replace(world, kv=kv, budget=budget)
        return SimStarter(changed, model=self._model, line=self._line, ranks=self.ranks)

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

    async def start(self, *, max_num_seqs: int, world: World | None = None) -> SimEngine:
        """See the seam. ``world``: the machine as this engine finds it, its noise apart.

        Raises EngineError outside of virtual time too.
        """
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise EngineError(
                "the simulated engine lives on virtual time only",
                hint="Run the program with tuner.engines.sim.virtual_time.run.",
            )
        arguments, kv, line = self.resolve(max_num_seqs=max_num_seqs), self._world.kv, self._line
        if max_num_seqs != line.lost:
            await asyncio.sleep(self._world.engine_start)
            line.started += 1
        line.lost = None
        facts = EngineFacts(
            engine="sim",
            arguments=arguments,
            max_model_len=kv.blocks * kv.block_size,
            vocab_size=VOCAB_SIZE,
            block_size=kv.block_size,
            kv_blocks=kv.blocks,
            start_s=self._world.engine_start,
            versions=self.versions,
            device=self.device,
        )
        number, noisy = line.started, self._world
        engine = SimEngine(
            facts,
            world or noisy,
            lambda now_s: engine_noise(line.machine, noisy, number=number, now_s=now_s),
            loop,
        )
        loop.attach(engine.advance)
        return engine
