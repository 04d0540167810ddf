"""Start simulated engines on a machine that a world file describes."""

import asyncio
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numba

from tuner.engines.scheduler.state import Noise
from tuner.engines.seam import ArgumentValue, EngineFacts
from tuner.engines.sim.engine import SimEngine
from tuner.engines.sim.noise import engine_noise, machine_noise
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.engines.sim.world import World, WorldKv
from tuner.errors import EngineError

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
