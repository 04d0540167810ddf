"""Machines whose answer is known: a folder each, with what `tuner sweep --json` must say of it.

`options` are the words of the sweep, `expected.json` its values with their tolerance: a share by
that much, a time or rate by that part. `pytest --update-golden` writes the values anew.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.outside.machines.swept import HERE, MACHINES, Swept, options
from tests.outside.table import run

SHARES = ("attainment", "measured_attainment", "kv_cache_usage_peak")
TIMES = ("goodput_rps", "output_tokens_per_s", "ttft_p99_ms", "tpot_p95_ms", "e2el_p99_ms")


@pytest.mark.parametrize("name", MACHINES)
def test_a_sweep_finds_what_is_known_of_the_machine(
    name: str, swept: Swept, update_golden: bool
) -> None:
    sweep = swept(name)
    done = sweep.done
    path = HERE / name / "expected.json"
    expected = json.loads(path.read_text())
    (digest,) = re.findall(r"trace_digest: '?([\w:]+)", (sweep.folder / "profile.yaml").read_text())
    result = {"exit": done.code, "trace_digest": digest, **decided(done.json)}
    if update_golden:
        path.write_text(json.dumps({"tolerance": expected["tolerance"], **result}, indent=1) + "\n")
        return
    share, time = expected["tolerance"]["share"], expected["tolerance"]["time"]
    exact = ("exit", "trace_digest", "verdict", "max_num_seqs")
    assert {key: result[key] for key in exact} == {key: expected[key] for key in exact}
    if result["verdict"] == "inconclusive":  # and so are its numbers
        return
    assert result["interval"] == expected["interval"]
    assert result["confidence"] == pytest.approx(expected["confidence"], abs=0.05)
    assert result["slo"] == pytest.approx(expected["slo"], rel=time)
    assert result["curve"].keys() == expected["curve"].keys()
    for cap, known in expected["curve"].items():
        step = result["curve"][cap]
        for key in SHARES:
            assert step[key] == pytest.approx(known[key], abs=share), (cap, key)
        for key in TIMES:
            assert step[key] == pytest.approx(known[key], rel=time, abs=0.05), (cap, key)
        if "e2el_p99_width" in known:
            assert 1 / 3 < step["e2el_p99_width"] / known["e2el_p99_width"] < 3, cap
        assert bool(step["preemptions"]) == bool(known["preemptions"]), cap


def decided(result: dict[str, Any]) -> dict[str, Any]:
    """Return what is frozen of the JSON of a sweep."""
    keys = ("verdict", "max_num_seqs", "interval", "confidence")
    return {key: result[key] for key in keys} | {
        "slo": {key: value for key, value in result["slo"].items() if type(value) is float},
        "curve": {str(step["max_num_seqs"]): of_step(step) for step in result["curve"]},
    }


def of_step(step: dict[str, Any]) -> dict[str, Any]:
    low, high = step["intervals"]["e2el_p99_ms"]
    return {
        "e2el_p99_width": (high - low) / step["e2el_ms"]["p99"],
        **{key: step[key] for key in ("attainment", "goodput_rps", "output_tokens_per_s")},
        "kv_cache_usage_peak": step["kv_cache_usage"]["peak"],
        "ttft_p99_ms": step["ttft_ms"]["p99"],
        "tpot_p95_ms": step["tpot_ms"]["p95"],
        "e2el_p99_ms": step["e2el_ms"]["p99"],
        "preemptions": step["preemptions"],
        "measured_attainment": step["measured"] and step["measured"]["attainment"],
    }


def test_what_production_rejected_is_counted_and_never_sent(swept: Swept, tmp_path: Path) -> None:
    words = options("exact")
    place = words.index("--trace") + 1
    header, *rows = Path(words[place]).read_text().splitlines()
    rejected = [json.dumps({**json.loads(row), "status": "rejected"}) for row in rows]
    (tmp_path / "prod.jsonl").write_text("\n".join([header, *rows, *rejected]) + "\n")
    words[place] = str(tmp_path / "prod.jsonl")
    done = run(tmp_path, "sweep", *words, "--json")
    assert done.json["curve"] == swept("exact").done.json["curve"]


def test_what_is_served_is_counted_by_the_second(swept: Swept) -> None:
    """One request in two seconds, and all of them are good."""
    promise = yaml.safe_load((swept("exact").folder / "profile.yaml").read_text())["promise"]
    assert promise["requests_per_s"] == pytest.approx(0.5, rel=0.01)
    assert promise["requests_per_s"] == promise["goodput_rps"]
