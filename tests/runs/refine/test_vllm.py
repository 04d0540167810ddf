"""A refinement's space on a real engine."""

from pathlib import Path

import pytest

from tests.support.places import ROOT
from tuner.commands.options import RefineOptions
from tuner.commands.refine import space_of
from tuner.commands.shared.machine import machine_of
from tuner.errors import UsageError
from tuner.profile import profile
from tuner.runs.refine.space import Space
from tuner.trace.trace import TraceRequest

pytestmark = pytest.mark.vllm

PROFILE = ROOT / "profiles" / "translation-tiny-cpu.yaml"
REQUESTS = [TraceRequest(row, row / 100, 20, 30) for row in range(10)]


def space(*search: str) -> Space:
    options = RefineOptions(profile=PROFILE, trace=Path(), search=search)
    item = profile.load(PROFILE)
    machine = machine_of(options, item.model, item.sampling)
    return space_of(options, item, machine, requests=REQUESTS, block_size=16)


def test_vllm_is_asked_about_every_value_before_anything_starts() -> None:
    result = space(
        "--block-size=64,128",
        "kv_cache_dtype=auto,fp8",
        'compilation_config={"mode": 0, "custom_ops": ["none", "+rms_norm"]},{"mode": 2}',
    )
    values = {knob.name: knob.values for knob in result.knobs}
    assert values["block_size"] == (64, 128)
    assert values["kv_cache_dtype"] == ("auto", "fp8")
    assert values["compilation_config"] == (
        None, {"mode": 0, "custom_ops": ["none", "+rms_norm"]}, {"mode": 2},
    )  # fmt: skip
    assert not any("async" in name for name in values)  # off on a CPU, whatever is asked
    for search, words in (
        ("kv_cache_dtype=nonsense", "vLLM (does not take|refuses: .*) 'nonsense'"),
        ('compilation_config={"mode"', "is no list of values"),
        ("max_num_sqs=3", "max_num_sqs: .*unrecognized arguments"),
        ("async_scheduling=true", "it is False here, whatever is asked"),
    ):
        with pytest.raises(UsageError, match=words):
            space(search)
