"""The sizes of CUDA graphs, as vLLM resolves them on a GPU whose driver is made up."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.vllm


LISTED: dict[str, object] = {"cudagraph_capture_sizes": [1, 8, 16]}
OF_THE_SERVER = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
CASES: dict[str, tuple[dict[str, object], int]] = {
    "small": ({}, 12),
    "large": ({}, 256),
    "sixteen": ({}, 16),
    "largest": ({}, 600),
    "listed": (LISTED, 12),
    "compiled": ({"compilation_config": LISTED}, 12),
    "eager": ({"enforce_eager": True}, 12),
}
"""What was asked for, and how many sequences the engine is for."""


@pytest.fixture(scope="module")
def resolved() -> dict[str, Any]:
    """The arguments of these engines, and how they compute."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lone_cuda", json.dumps([*CASES.values()])],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_the_sizes_of_cuda_graphs_are_the_servers_own_whatever_max_num_seqs_is(
    resolved: dict[str, Any],
) -> None:
    """Left to itself vLLM takes 1, 2, 4, 8, 12, 16 and 24 for 12 sequences, up to 512 for 256."""
    for one in (resolved["sixteen"], resolved["large"], resolved["largest"]):
        assert one["how"]["cudagraph_capture_sizes"] == OF_THE_SERVER
        assert one["max_cudagraph_capture_size"] == 512
        assert "cudagraph_capture_sizes" not in one
    assert resolved["large"]["async_scheduling"] is True


def test_a_full_batch_that_decodes_has_a_graph_of_its_own(resolved: dict[str, Any]) -> None:
    """vLLM captures whole decode batches up to max_num_seqs: of 12 sequences 9 and more would run
    in pieces where the next sizes are 8 and 16."""
    small = resolved["small"]
    assert small["how"]["cudagraph_capture_sizes"] == sorted([*OF_THE_SERVER, 12])
    assert small["cudagraph_capture_sizes"] == small["how"]["cudagraph_capture_sizes"]
    assert "max_cudagraph_capture_size" not in small


def test_a_deployment_states_the_sizes_only_where_vllm_would_compute_others(
    resolved: dict[str, Any],
) -> None:
    """256 sequences have those of a server that nobody told anything; 12 and 16 have not. None has
    the 20 of the engine that was measured."""
    stated = {
        name: {key: value for key, value in one["deployed"].items() if "cudagraph" in key}
        for name, one in resolved.items()
    }
    assert stated == {
        "small": {"cudagraph_capture_sizes": sorted([*OF_THE_SERVER, 12])},
        "large": {},
        "sixteen": {"max_cudagraph_capture_size": 512},
        "largest": {},
        "listed": LISTED,
        "compiled": {},
        "eager": {},
    }


@pytest.mark.parametrize("name", ["listed", "compiled"])
def test_sizes_that_the_user_has_stated_stay(resolved: dict[str, Any], name: str) -> None:
    one = resolved[name]
    assert one["how"]["cudagraph_capture_sizes"] == [1, 8, 16]
    assert "max_cudagraph_capture_size" not in one


def test_without_graphs_nothing_is_said_of_their_sizes(resolved: dict[str, Any]) -> None:
    one = resolved["eager"]
    assert not {"max_cudagraph_capture_size", "cudagraph_capture_sizes"} & one.keys()
