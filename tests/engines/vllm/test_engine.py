"""The real engine: what the contract does not say. Each process started here is also gone here."""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import (
    VLLM_CRAMPED,
    request,
    until_it_generates,
)
from tests.support.processes import TIMEOUT_S, cores, family, lives
from tuner.engines import paged
from tuner.engines.seam import ArgumentValue, Reply
from tuner.engines.vllm import start
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, StoodStillError
from tuner.replay.soundness import stalls

pytestmark = pytest.mark.vllm


def llm_arguments(starter: VllmStarter, *, share: float) -> dict[str, Any]:
    from tuner.engines.vllm.config import for_llm  # noqa: PLC0415 - imports vLLM

    return for_llm(starter.resolved(max_num_seqs=2), share=share)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"model": "/no/such/folder"}, "/no/such/folder", "tuner:tiny"),
        ({"max_num_batched_tokens": 4}, r"max_num_batched_tokens \(4\)", "--ceiling"),
        ({"max_model_len": 99_999}, "99999", "max_model_len"),
        ({"max_model_len": "wide"}, "max_model_len: .*'wide'", ""),
        ({"gpu_memory_utilization": 3.0}, "gpu_memory_utilization", ""),
        ({"max_num_seq": 3}, "unexpected keyword argument 'max_num_seq'", ""),
        ({"max_num_active_seqs": 3}, "max_num_active_seqs", "Leave"),
        ({"device_ids": [1]}, "the GPUs that CUDA_VISIBLE_DEVICES shows", "Leave"),
        ({"scheduler_cls": "a.B"}, "scheduler_cls", "Leave"),
        ({"data_parallel_size": 2}, "say with --replicas", "Leave"),
    ],
)
def test_what_vllm_would_refuse_is_refused_before_anything_starts(
    arguments: dict[str, ArgumentValue], message: str, hint: str
) -> None:
    starter = VllmStarter({"model": "tuner:tiny", **arguments})
    with pytest.raises(EngineError, match=message) as caught:
        starter.resolve(max_num_seqs=8)
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"num_gpu_blocks_override": 1}, "cache blocks", "kv_cache_memory_bytes"),
        pytest.param(
            {"kv_cache_memory_bytes": 1 << 45},
            "32768.0 GiB",
            "kv_cache_memory_bytes",
            marks=pytest.mark.long,
        ),
        pytest.param({"load_format": "auto"}, "weights", "vllm.log", marks=pytest.mark.long),
    ],
)
def test_a_failed_start_says_why_and_leaves_nothing(
    tmp_path: Path, arguments: dict[str, ArgumentValue], message: str, hint: str
) -> None:
    before = cores()
    starter = VllmStarter({"model": "tuner:tiny", **arguments}, log=tmp_path / "vllm.log")
    with pytest.raises(EngineError, match=message) as caught:
        asyncio.run(starter.start(max_num_seqs=4))
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value) + caught.value.hint
    assert cores() == before


@pytest.mark.gpu
def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    before = cores()
    starter = VllmStarter(VLLM_CRAMPED, log=tmp_path / "vllm.log")

    async def main() -> None:
        task = asyncio.create_task(starter.start(max_num_seqs=4))
        async with asyncio.timeout(TIMEOUT_S):
            while not cores() - before:  # noqa: ASYNC110 - another process gives no event
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cores() == before


@pytest.mark.long
def test_a_start_that_hangs_is_ended_in_time_with_vllms_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "START_ON_CPU_S", 2.0)
    log, before = tmp_path / "vllm.log", cores()

    async def main() -> None:
        starter = VllmStarter(VLLM_CRAMPED, log=log)
        starter.resolve(max_num_seqs=2)
        task = asyncio.create_task(starter.start(max_num_seqs=2))
        while not (result := cores() - before):  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.001)
        log.write_text("loading weights\n")
        os.kill(result.pop(), signal.SIGSTOP)
        await task

    with pytest.raises(EngineError, match="did not start within 2 s; its last words: ") as caught:
        asyncio.run(main())
    assert str(log) in caught.value.hint
    assert cores() == before


@pytest.mark.gpu
def test_when_the_engine_is_killed_whoever_asks_is_told(tmp_path: Path) -> None:
    log, before = tmp_path / "vllm.log", cores()

    async def main() -> None:
        engine = await VllmStarter(VLLM_CRAMPED, log=log).start(max_num_seqs=2)
        (core,) = cores() - before
        os.kill(core, signal.SIGSTOP)  # so that it serves nobody before it is killed
        asking = engine.generate(request(1, prompt=5, output=200), Reply())
        task = asyncio.create_task(asking)
        await asyncio.sleep(0)
        os.kill(core, signal.SIGKILL)
        with pytest.raises(EngineError, match="killed by SIGKILL") as caught:
            await task
        assert "gpu_memory_utilization" in caught.value.hint
        for refused in (engine.iterations, engine.prepare):
            with pytest.raises(EngineError, match="died"):
                await refused()
        await engine.stop()

    asyncio.run(main())


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("kind", ["vllm", "serve"])
def test_an_engine_that_is_stopped_for_a_while_goes_on_and_for_good_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(paged, "HANG_S", 6.0)
    before, named_before = cores(), named_cores()

    async def main() -> None:
        starter = VllmStarter(VLLM_CRAMPED, tmp_path / "vllm.log", kind=kind)
        engine = await starter.start(max_num_seqs=2)
        (core,) = named_cores() - named_before or cores() - before
        first = Reply()
        asking = asyncio.gather(
            engine.generate(request(1, prompt=5, output=200), first),
            *(engine.generate(request(n, prompt=5, output=200), Reply()) for n in range(2, 40)),
        )
        await until_it_generates(first)
        os.kill(core, signal.SIGSTOP)
        await asyncio.sleep(4.0)
        os.kill(core, signal.SIGCONT)
        seen = first.output_tokens
        while first.output_tokens < seen + 2:  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.01)
        (still,) = stalls(await engine.iterations())
        assert re.search(r"stood still for [345] s", still)
        os.kill(core, signal.SIGSTOP)
        with pytest.raises(StoodStillError, match=r"stands still: no iteration for \d+ s"):
            await asking
        with pytest.raises(StoodStillError):
            await engine.iterations()
        await engine.stop()
        assert not lives(core)

    asyncio.run(main())


def named_cores() -> set[int]:
    """Return the engines' processes by their names: a server's is none that we started."""
    return {pid for pid in family(os.getpid()) if "EngineCor" in name_of(pid)}


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_tokens_are_drawn_by_the_generation_configuration_but_for_what_is_asked() -> None:
    given: dict[str, ArgumentValue] = {"override_generation_config": {"top_p": 0.8, "top_k": 20}}
    starter = VllmStarter({"model": "tuner:tiny", **given}, sampling={"top_p": 0.5})
    resolved = starter.resolved(max_num_seqs=2)
    drawn = {"temperature": 1.0, "top_p": 0.5, "top_k": 20}
    assert resolved.facts.sampling == drawn
    assert llm_arguments(starter, share=1.0)["override_generation_config"] == drawn
    # what a deployment needs stays its own
    assert given.items() <= resolved.facts.arguments.items()
    assert VllmStarter({"model": "tuner:tiny"}).resolved(max_num_seqs=2).facts.sampling == {
        "temperature": 1.0
    }


def test_what_no_replay_shows_is_a_caution() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    starter = VllmStarter({"model": "tuner:tiny", "speculative_config": drafts})
    (caution,) = starter.resolved(max_num_seqs=2).facts.cautions
    assert "drafts" in caution


def test_what_is_private_is_in_no_profile() -> None:
    private: dict[str, ArgumentValue] = {
        "hf_token": "secret",
        "served_model_name": ["a"],
        "download_dir": "/here",
    }
    arguments = VllmStarter({"model": "tuner:tiny", **private}).resolve(max_num_seqs=2)
    assert not private.keys() & arguments.keys()
