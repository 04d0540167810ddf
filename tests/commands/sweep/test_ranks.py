"""A data-parallel server: one of its ranks is measured, with its share of the traffic."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.builders import request
from tests.support.profiles import profile
from tuner.commands.sweep.one_trace import (
    SweptTraffic,
    one_servers,
    plan_of,
    ranks_of,
    settings_of,
    starter_of,
)
from tuner.commands.sweep.options import SweepOptions
from tuner.engines.devices import gpus_of
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError
from tuner.rollout.fit import cautions
from tuner.trace.trace import Trace, TraceHeader

# in turns, so that rank and replica get every other request
OPTIONS = SweepOptions(model="tuner:tiny", ceiling=8, router="rr")


def traffic() -> SweptTraffic:
    rows = [request(row, arrival_s=float(row)) for row in range(8)]
    trace = Trace.of(TraceHeader(), rows)
    return SweptTraffic(trace, rows, settings_of(OPTIONS, trace), ())


def test_one_rank_gets_its_share_and_everything_is_said_to_be_one_ranks() -> None:
    starter = VllmStarter({"model": "tuner:tiny"}, ranks=2)
    found = one_servers(traffic(), OPTIONS, starter)
    assert [one.row for one in found.requests] == [0, 2, 4, 6]
    (said,) = found.warnings
    assert "max_num_seqs and every number are one rank's" in said
    assert "2 times the slots" in said


def test_an_engine_takes_as_many_gpus_as_its_parallel_sizes_multiply_to() -> None:
    assert gpus_of({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "seed": 9}) == 8
    assert gpus_of({"max_num_seqs": 16}) == 1


@pytest.mark.vllm
def test_a_base_file_with_ranks_is_tuned_as_one_of_them(tmp_path: Path) -> None:
    base = tmp_path / "serve.yaml"
    base.write_text("data-parallel-size: 2\ndata-parallel-size-local: 2\nmax-num-seqs: 4\n")
    options = replace(OPTIONS, base=base)
    starter = starter_of(options, None)
    arguments = starter.resolve(max_num_seqs=options.ceiling)
    plan = plan_of(options, traffic().trace, arguments, ranks=ranks_of(starter))
    assert plan["replicas"] == 2
    assert not [name for name in plan["engine_arguments"] if name.startswith("data_parallel")]


@pytest.mark.vllm
def test_ranks_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 512, "vocab_size": 256, "torch_dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = {"model": str(tmp_path), "load_format": "dummy"}
    assert VllmStarter(arguments).resolve(max_num_seqs=4)["max_num_seqs"] == 4
    with pytest.raises(EngineError, match="ranks of a mixture of experts wait") as caught:
        VllmStarter(arguments, ranks=2).resolve(max_num_seqs=4)
    assert "data_parallel_size 1" in caught.value.hint


def test_whoever_uses_such_a_profile_is_told() -> None:
    one_of_two = profile(ranks=2)
    (said,) = [one for one in cautions(one_of_two, []) if "ranks" in one]
    assert said == "max_num_seqs and every number are those of one of 2 data-parallel ranks"
    assert not [one for one in cautions(profile(), []) if "ranks" in one]
