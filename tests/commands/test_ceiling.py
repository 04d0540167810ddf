"""`--ceiling auto`: the least of what traffic, memory and server allow, said before the start."""

import json
from pathlib import Path

import pytest

from tests.support.builders import request
from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.traces import beginning
from tuner.commands.forecast import auto_ceiling

pytestmark = pytest.mark.usefixtures("by_few_draws")

# 60 tokens in and 40 out each but one, which the median does not mind.
REQUESTS = [request(row, input_length=60, output_length=40) for row in range(9)] + [
    request(9, input_length=9000, output_length=40)
]


@pytest.mark.parametrize(
    ("server", "kv_tokens", "ceiling", "why"),
    [
        (None, None, 256, "256 is rarely worth"),
        (1024, 10**9, 256, "256 is rarely worth"),
        (128, 10**9, 128, "takes 128 by default"),
        (128, 5_000, 64, "50 sequences"),  # 5,000 / 100 = 50, and the next power of two
        (48, 4_000, 48, "40 sequences"),  # 64 would be above what the server takes
        (None, 10, 1, "1 sequences"),
    ],
)
def test_the_least_counts_rounded_up_and_never_above_the_server(
    server: int | None, kv_tokens: int | None, ceiling: int, why: str
) -> None:
    found, reason = auto_ceiling(REQUESTS, server=server, kv_tokens=kv_tokens)
    assert found == ceiling
    assert why in reason


def test_a_sweep_says_the_number_and_its_reason_and_keeps_it(tmp_path: Path) -> None:
    """A cache of 100 blocks of 16 tokens holds 7 sequences of the trace's median length."""
    (tmp_path / "world.yaml").write_text(
        "step: {a: 0.020, b: 0.0006, n0: 16, h: 0.0025}\nkv: {blocks: 100, block_size: 16}\n"
    )
    trace = str(ROOT / "traces" / "translation.jsonl")
    options = ("--world", "world.yaml", "--trace", trace, "--ceiling", "auto")
    said = "--ceiling auto is 8: 7 sequences of the median length fit into the KV cache"
    dry = tuner(tmp_path, "sweep", *options, "--dry-run", "--json")
    assert said in dry.stdout
    done = tuner(tmp_path, "sweep", *options, "--step", "20s", "--json", "--run-dir", "run")
    assert said in done.stderr
    assert [one["max_num_seqs"] for one in json.loads(done.stdout)["curve"]][-1] == 8
    plan = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[0])["plan"]
    assert plan["ceiling"] == 8


def test_a_high_ceiling_costs_no_more_replays_than_a_low_one(tmp_path: Path) -> None:
    """How long it replays is said by --step: with more caps to try each gets less."""
    trace = beginning(tmp_path / "prod.jsonl", 300)
    world = str(ROOT / "examples" / "worlds" / "article-quiet.yaml")
    took = []
    for ceiling in (32, 256):
        done = tuner(
            tmp_path, "sweep", "--world", world, "--trace", str(trace),
            "--ceiling", str(ceiling), "--step", "20s", "--json", "--run-dir", str(ceiling),
        )  # fmt: skip
        took.append(json.loads(done.stdout)["engine_seconds"]["replay"])
    assert took[1] <= 1.2 * took[0]
