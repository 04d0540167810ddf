"""A start that takes long says what it does."""

import asyncio
from pathlib import Path
from typing import Any

from tuner.engines.seam import Engine
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World
from tuner.engines.vllm.start import VllmStarter
from tuner.runs import journal
from tuner.runs.bench import Bench, Build


class Starting(VllmStarter):
    """Says in its log what vLLM says, and takes ``each_s`` for each part."""

    each_s = 15.0

    async def start(self, *, max_num_seqs: int) -> Engine:
        for said in ("Starting to load model m...", "Capturing CUDA graphs (decode, FULL):   0%"):
            with self.log.open("a") as log:
                log.write(f"{said}\n")
            await asyncio.sleep(self.each_s)
        return await SimStarter(World(engine_start=0.0)).start(max_num_seqs=max_num_seqs)


class Told:
    """See Watcher."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)


def told(folder: Path, each_s: float) -> list[str]:
    """Return what is said of a start."""
    log, watcher = folder / "vllm.log", Told()
    log.write_text("Capturing CUDA graphs\n")  # of an engine before
    starter = Starting({"model": "m"}, log=log)
    starter.each_s = each_s
    book = journal.create(folder / "run", {"trace_digest": "sha256:1"})

    async def main() -> None:
        seen: Any = watcher
        bench = Bench(book, seen, None, block_size=16)
        await bench.up(Build("ladder", 8, starter))
        await bench.stop()

    run(main())
    book.close()
    return watcher.stages[1:]


def test_each_part_of_a_start_is_said_once_while_it_goes_on(tmp_path: Path) -> None:
    assert told(tmp_path, 15.0) == [
        "the engine is loading weights", "the engine is capturing CUDA graphs",
    ]  # fmt: skip


def test_of_a_start_of_seconds_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path, 4.0) == []
