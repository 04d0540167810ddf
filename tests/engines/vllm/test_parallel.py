"""Engines over several ranks, as far as one machine without GPUs goes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lone_ranks import OUTPUT, PROMPT, REQUESTS
from tests.support.places import ROOT
from tests.support.processes import family, lives, wait_until
from tuner.engines.seam import ArgumentValue

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
"""Every rank imports vLLM by itself."""


EAGER_GRAPH = {"mode": 2, "backend": "eager"}
"""Stages of a pipeline want a compiled model; this compiles nothing by itself."""


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        {"tensor_parallel_size": 2},
        {
            "pipeline_parallel_size": 2,
            "enforce_eager": False,
            "compilation_config": EAGER_GRAPH,
        },
    ],
    ids=["tensor", "pipeline"],
)
def test_two_ranks_are_one_engine_and_none_survives_a_tuner_that_is_killed(
    tmp_path: Path, arguments: dict[str, ArgumentValue]
) -> None:
    log = tmp_path / "vllm.log"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.lone_ranks", str(log), json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as program:
        try:
            assert program.stdout is not None
            words = program.stdout.readline()
            assert words, log.read_text()[-2000:]
            everybody = family(program.pid)
        finally:
            program.kill()
    seen = json.loads(words)
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    assert {name: seen["arguments"][name] for name in sizes} == {
        name: arguments.get(name, each) for name, each in sizes.items()
    }
    assert seen["output_tokens"] == [OUTPUT] * REQUESTS
    # one log for all ranks: nothing is missing in it, and nothing is counted twice
    assert seen["prefill_tokens"] == PROMPT * REQUESTS
    assert seen["decode_tokens"] == (OUTPUT - 1) * REQUESTS
    assert seen["running_peak"] == 2
    # blocks of 128 tokens: 100 + 60 take two, of two sequences that begin a few tokens apart
    assert seen["kv_blocks_peak"] == 4
    assert len(everybody) >= 3  # EngineCore and its workers
    wait_until(lambda: not any(map(lives, everybody)))
