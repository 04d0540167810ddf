"""A data-parallel server: one of its ranks is measured, with its share of the traffic."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.sweep.test_sweep import Notes
from tests.support.builders import request
from tests.support.places import ROOT
from tests.support.profiles import profile
from tuner.commands.sweep.kinds import done_on, plans_of
from tuner.commands.sweep.one_trace import (
    FinishedSweep,
    SweptTraffic,
    keep_trace,
    one_servers,
    plan_of,
    ranks_of,
    rescored,
    sealed,
    settings_of,
    starter_of,
)
from tuner.commands.sweep.options import SweepOptions
from tuner.engines.devices import gpus_of
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError
from tuner.profile.profile import load
from tuner.rollout.fit import cautions
from tuner.runs import journal
from tuner.runs.cluster.share import Share
from tuner.runs.sweep.sweep import sweep
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


def test_without_ranks_nothing_is_shared_and_nothing_said() -> None:
    found = one_servers(traffic(), OPTIONS, VllmStarter({"model": "tuner:tiny"}))
    assert len(found.requests) == 8
    assert found.warnings == ()


def test_an_engine_takes_as_many_gpus_as_its_parallel_sizes_multiply_to() -> None:
    assert gpus_of({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "seed": 9}) == 8
    assert gpus_of({"max_num_seqs": 16}) == 1


def test_a_kind_of_node_whose_engine_is_a_rank_says_so_also_when_it_is_rescored(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    from tuner.runs.cluster.sweeps import Kind  # noqa: PLC0415 - imports ray

    starter = VllmStarter({"model": "tuner:tiny"}, ranks=2)
    kinds = {"h100": Kind("h100", {}, {"name": "H100"}, Share(()), starter)}
    options = replace(OPTIONS, slo="e2el=60s", step="8s", ceiling=2, headroom=1.0)
    part = replace(traffic(), settings=settings_of(options, traffic().trace))
    plan = plans_of(options, part.trace, kinds, {"h100": {"model": "tuner:tiny"}})["h100"]
    assert (plan["ranks"], plan["replicas"]) == (2, 2)
    book = journal.create(tmp_path / "run", plan)
    keep_trace(part, book)
    outcome = run(sweep(part.requests, SimStarter(World()), part.settings, book, Notes()))
    book.close()
    done = done_on(kinds["h100"], outcome, part, book.run_dir, 1.0)
    assert isinstance(done, FinishedSweep)
    again = rescored(options, journal.read(book.run_dir))
    assert [sealed(one, []).provenance.ranks for one in (done, again)] == [2, 2]


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


def test_the_shipped_profile_of_an_older_tuner_is_of_a_whole_server() -> None:
    shipped = ROOT / "profiles" / "translation-tiny-cpu.yaml"
    assert load(shipped).provenance.ranks == 1
