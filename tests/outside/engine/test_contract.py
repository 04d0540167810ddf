"""What every engine promises, held against each of them."""

import asyncio
import json
import time

import numpy as np
import pytest

from tests.engines.conftest import (
    CEILING,
    StartedEngine,
    generate,
    generate_all,
    request,
    until_it_generates,
)
from tuner.engines.seam import ITERATION, IterationLog, Reply, RequestFailedError
from tuner.errors import EngineError


def test_facts_say_what_the_engine_is_and_what_a_deployment_needs(roomy: StartedEngine) -> None:
    facts = roomy.engine.facts
    assert facts.arguments["max_num_seqs"] == CEILING
    assert facts.arguments["max_num_batched_tokens"] == 512
    assert {"model", "max_model_len", "enable_chunked_prefill"} <= facts.arguments.keys()
    assert facts.kv_blocks * facts.block_size >= facts.max_model_len
    assert facts.vocab_size > 1000
    assert facts.start_s > 0
    assert "python" in facts.versions
    assert facts.device["name"]
    assert json.loads(json.dumps(dict(facts.arguments))) == facts.arguments


def test_starting_pins_what_resolving_said(roomy: StartedEngine) -> None:
    resolved = roomy.starter.resolve(max_num_seqs=CEILING)
    assert resolved.items() <= roomy.engine.facts.arguments.items()


def test_the_token_budget_does_not_move_with_max_num_seqs(roomy: StartedEngine) -> None:
    budgets = {roomy.starter.resolve(max_num_seqs=n)["max_num_batched_tokens"] for n in (1, 2, 64)}
    assert budgets == {512}


@pytest.mark.parametrize("output", [1, 2, 17])
def test_exactly_the_requested_number_of_tokens_comes(roomy: StartedEngine, output: int) -> None:
    reply = roomy.run(generate(roomy.engine, request(1, prompt=20, output=output)))
    roomy.run(roomy.engine.iterations())  # which completes it
    assert reply.output_tokens == output
    assert len(reply.seen_s) <= output
    assert reply.seen_s == sorted(set(reply.seen_s))
    assert reply.queued_s <= reply.scheduled_s <= reply.first_s <= reply.last_s
    assert reply.first_s <= reply.seen_s[0]
    assert reply.last_s <= reply.seen_s[-1]


def test_never_more_sequences_run_than_the_cap_allows_and_the_others_queue(
    roomy: StartedEngine,
) -> None:
    async def main() -> tuple[list[Reply], IterationLog]:
        await roomy.engine.prepare(max_num_seqs=3, max_num_batched_tokens=512)
        requests = [request(name, prompt=10, output=100) for name in range(7)]
        replies = await generate_all(roomy.engine, *requests)
        return replies, await roomy.engine.iterations()

    replies, log = roomy.run(main())
    assert [reply.output_tokens for reply in replies] == [100] * 7
    assert log["running"].max() == 3
    assert (log["decode_seqs"] + log["prefill_seqs"]).max() == 3
    assert log["waiting"].max() == 4
    waits = [reply.scheduled_s - reply.queued_s for reply in replies]
    # Nobody leaves before the 100th iteration, so four wait longer than the first ten take.
    assert sum(wait > log["duration_s"][:10].sum() for wait in waits) == 4


def test_the_cap_moves_live_and_back(roomy: StartedEngine) -> None:
    async def most_running(cap: int) -> int:
        await roomy.engine.prepare(max_num_seqs=cap, max_num_batched_tokens=512)
        requests = [request(name, prompt=10, output=5 * cap) for name in range(CEILING + 2)]
        await generate_all(roomy.engine, *requests)
        return int((await roomy.engine.iterations())["running"].max())

    async def main() -> list[int]:
        return [await most_running(cap) for cap in (1, 5, CEILING, 2, CEILING)]

    assert roomy.run(main()) == [1, 5, CEILING, 2, CEILING]


def test_no_iteration_takes_more_tokens_than_the_budget(roomy: StartedEngine) -> None:
    async def main() -> IterationLog:
        await roomy.engine.prepare(max_num_seqs=4, max_num_batched_tokens=16)
        await generate_all(roomy.engine, *(request(n, prompt=50, output=4) for n in range(4)))
        return await roomy.engine.iterations()

    log = roomy.run(main())
    assert (log["decode_seqs"] + log["prefill_tokens"]).max() == 16
    assert log["prefill_tokens"].sum() == 4 * 50


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens"), [(0, 512), (CEILING + 1, 512), (4, 513), (4, 0)]
)
def test_limits_out_of_range_are_refused(
    roomy: StartedEngine, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    with pytest.raises(EngineError):
        roomy.run(
            roomy.engine.prepare(
                max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
            )
        )
    reply = roomy.run(generate(roomy.engine, request(1, prompt=5, output=3)))
    assert reply.output_tokens == 3


def test_a_busy_engine_refuses_what_needs_an_idle_one(roomy: StartedEngine) -> None:
    async def main() -> None:
        reply = Reply()
        task = asyncio.create_task(roomy.engine.generate(request(1, prompt=5, output=900), reply))
        await until_it_generates(reply)
        with pytest.raises(EngineError):
            await roomy.engine.prepare(max_num_seqs=1, max_num_batched_tokens=512)
        await task

    roomy.run(main())


def test_cancelling_a_request_frees_its_slot(roomy: StartedEngine) -> None:
    async def main() -> tuple[Reply, Reply]:
        await roomy.engine.prepare(max_num_seqs=1, max_num_batched_tokens=512)
        first = Reply()
        task = asyncio.create_task(roomy.engine.generate(request(1, prompt=5, output=900), first))
        await until_it_generates(first)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        second = await generate(roomy.engine, request(2, prompt=5, output=3))
        return first, second

    first, second = roomy.run(main())
    assert 2 <= first.output_tokens < 900
    assert second.output_tokens == 3


def test_limits_and_prefixes_change_at_once_after_everything_was_cut(roomy: StartedEngine) -> None:
    async def main() -> int:
        replies = [Reply() for _ in range(2 * CEILING)]
        tasks = [
            asyncio.create_task(roomy.engine.generate(request(name, prompt=5, output=900), reply))
            for name, reply in enumerate(replies)
        ]
        await until_it_generates(replies[0])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await roomy.engine.prepare(max_num_seqs=2, max_num_batched_tokens=512)
        await generate_all(roomy.engine, *[request(n, prompt=5, output=50) for n in range(4)])
        return int((await roomy.engine.iterations())["running"].max())

    assert roomy.run(main()) == 2


def test_iterations_account_for_every_token(roomy: StartedEngine) -> None:
    requests = [request(n, prompt=10 + 30 * n, output=5 + 7 * n) for n in range(CEILING)]

    async def main() -> tuple[IterationLog, IterationLog]:
        await generate_all(roomy.engine, *requests)
        return await roomy.engine.iterations(), await roomy.engine.iterations()

    log, after = roomy.run(main())
    assert log.dtype == ITERATION
    assert log["prefill_tokens"].sum() == sum(len(request.prompt_token_ids) for request in requests)
    # The end of a prompt brings the first token; each further one is one sequence's iteration.
    assert log["decode_seqs"].sum() == sum(request.output_length - 1 for request in requests)
    assert log["prefill_seqs"].sum() >= CEILING
    assert log["preemptions"].sum() == log["recomputed_tokens"].sum() == 0
    assert after.size == 0


def test_a_lone_request_shows_its_context_grow_and_its_blocks(roomy: StartedEngine) -> None:
    async def main() -> tuple[Reply, IterationLog]:
        reply = await generate(roomy.engine, request(1, prompt=100, output=50))
        return reply, await roomy.engine.iterations()

    reply, log = roomy.run(main())
    decode = log[log["decode_seqs"] == 1]
    assert decode["context_tokens"].tolist() == list(range(100, 149))
    block = roomy.engine.facts.block_size
    assert log["kv_blocks_used"].tolist() == [-(-tokens // block) for tokens in range(100, 150)]
    assert len(log) == 50
    # An iteration ends when its token is out, to within the engine's own accounting.
    ends = log["start_s"] + log["duration_s"]
    nearest = np.abs(ends[:, None] - np.array([reply.first_s, reply.last_s])).min(axis=0)
    assert nearest.max() < 0.01


def test_iterations_tile_the_busy_time(roomy: StartedEngine) -> None:
    async def main() -> tuple[list[Reply], IterationLog]:
        requests = [request(n, prompt=40, output=200) for n in range(4)]
        replies = await generate_all(roomy.engine, *requests)
        return replies, await roomy.engine.iterations()

    replies, log = roomy.run(main())
    ends = log["start_s"] + log["duration_s"]
    assert (log["duration_s"] > 0).all()
    np.testing.assert_allclose(log["start_s"][1:], ends[:-1], atol=1e-6)
    last_s = max(reply.last_s for reply in replies)
    assert log["duration_s"].sum() == pytest.approx(last_s - log["start_s"][0], abs=0.01)


def test_idle_time_has_no_iteration(roomy: StartedEngine) -> None:
    async def main() -> IterationLog:
        await generate(roomy.engine, request(1, prompt=10, output=5))
        await asyncio.sleep(0.5)
        await generate(roomy.engine, request(2, prompt=10, output=5))
        return await roomy.engine.iterations()

    log = roomy.run(main())
    assert len(log) == 10
    assert log["duration_s"].sum() < 0.5


def test_outputs_that_are_read_late_are_counted_as_merged(roomy: StartedEngine) -> None:
    async def main() -> Reply:
        reply = Reply()
        task = asyncio.create_task(roomy.engine.generate(request(1, prompt=5, output=60), reply))
        await until_it_generates(reply)
        time.sleep(0.2)  # noqa: ASYNC251 - a loop that is blocked is what this is about
        await task
        return reply

    reply = roomy.run(main())
    assert reply.output_tokens == 60
    is_late = roomy.engine.facts.engine != "sim"  # virtual time stands still meanwhile
    assert (len(reply.seen_s) < 60) == is_late


def test_a_request_that_cannot_be_served_fails_alone(roomy: StartedEngine) -> None:
    async def main() -> Reply:
        limit = roomy.engine.facts.max_model_len
        for prompt, output in ((limit, 10), (0, 10), (10, 0), (10, limit)):
            with pytest.raises(RequestFailedError):
                await generate(roomy.engine, request(1, prompt=prompt, output=output))
        return await generate(roomy.engine, request(2, prompt=10, output=3))

    assert roomy.run(main()).output_tokens == 3


@pytest.fixture(scope="module")
def preempted(cramped: StartedEngine) -> tuple[list[Reply], IterationLog]:
    """What came of six requests of which three have room."""
    requests = [request(n, prompt=32, output=96) for n in range(6)]

    async def main() -> tuple[list[Reply], IterationLog]:
        replies = await generate_all(cramped.engine, *requests)
        return replies, await cramped.engine.iterations()

    return cramped.run(main())


def test_without_kv_blocks_sequences_are_preempted_and_still_complete(
    cramped: StartedEngine, preempted: tuple[list[Reply], IterationLog]
) -> None:
    replies, log = preempted
    assert [reply.output_tokens for reply in replies] == [96] * 6
    assert log["preemptions"].sum() > 0
    assert log["recomputed_tokens"].sum() >= 32
    assert log["kv_blocks_used"].max() == cramped.engine.facts.kv_blocks == 12
    computed = log["prefill_tokens"].sum() + log["cached_tokens"].sum()
    assert computed == 6 * 32 + log["recomputed_tokens"].sum() + resumptions(log)


def resumptions(log: IterationLog) -> int:
    """Return how many last tokens, not computed yet when preempted, resuming put in as prefill."""
    return int(log["preemptions"].sum())


@pytest.mark.usefixtures("preempted")  # nothing is asked of it afterwards
def test_a_stopped_engine_refuses_everything_and_stops_twice(cramped: StartedEngine) -> None:
    engine = cramped.engine

    async def main() -> None:
        reply = Reply()
        task = asyncio.create_task(engine.generate(request(1, prompt=5, output=200), reply))
        await until_it_generates(reply)
        await engine.stop()
        await engine.stop()
        with pytest.raises(EngineError):
            await task
        with pytest.raises(EngineError):
            await generate(engine, request(2, prompt=5, output=2))
        for refused in (engine.iterations, engine.prepare):
            with pytest.raises(EngineError):
                await refused()

    cramped.run(main())


def test_a_prompt_is_found_again_until_the_prefix_cache_is_reset(roomy: StartedEngine) -> None:
    item = request(1, prompt=2 * roomy.engine.facts.block_size + 10, output=2)

    async def main() -> tuple[list[int | None], int]:
        replies = [await generate(roomy.engine, item), await generate(roomy.engine, item)]
        first = await roomy.engine.iterations()
        await roomy.engine.prepare()
        replies.append(await generate(roomy.engine, item))
        log = await roomy.engine.iterations()
        cached = int(first["cached_tokens"].sum() + log["cached_tokens"].sum())
        return [reply.cached_tokens for reply in replies], cached

    caches = roomy.engine.facts.arguments["enable_prefix_caching"]  # the simulated engine has none
    result = 2 * roomy.engine.facts.block_size if caches else 0
    assert roomy.run(main()) == ([0, result, 0], result)
