"""`tuner compare`: what it takes of a profile, what it refuses, and real workers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.places import ROOT
from tests.support.processes import family, lives, wait_until
from tests.support.traces import SAMPLES
from tuner.commands.compare import run
from tuner.commands.options import CompareOptions
from tuner.errors import TunerError

pytestmark = pytest.mark.usefixtures("by_few_draws")

ARTICLE = ROOT / "examples" / "worlds" / "article.yaml"
SHIPPED = ROOT / "profiles" / "translation-tiny-cpu.yaml"
TUNER = Path(sys.executable).with_name("tuner")

OPTIONS = CompareOptions(
    trace=SAMPLES / "translation.jsonl", profile=SHIPPED, world=ARTICLE, budget="3h", json=True
)

Compare = Callable[..., dict[str, Any]]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return what runs a comparison in a folder of its own and gives its JSON."""

    def go(**changes: object) -> dict[str, Any]:
        run(replace(OPTIONS, **{"run_dir": tmp_path / "run", **changes}))
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return go


def rows(result: dict[str, Any], load: str) -> dict[str, dict[str, Any]]:
    """Return approach → its row."""
    (table,) = (each for each in result["tables"] if each["load"] == load)
    return {row["approach"]: row for row in table["rows"]}


def test_a_profile_brings_its_value_and_its_whole_configuration(
    compare: Compare,
) -> None:
    result = compare(loads="recorded")
    assert any("here it is simulated:article" in warning for warning in result["warnings"])
    assert result["tuned"] == {"max_num_seqs": 8, "source": str(SHIPPED)}
    assert list(rows(result, "recorded")) == ["untuned", "tuned"]


def test_a_trace_without_a_rate_is_refused_before_any_engine_starts(
    compare: Compare, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.jsonl"
    path.write_text('{"timestamp": 7, "input_length": 9, "output_length": 9}\n' * 3)
    with pytest.raises(TunerError, match="all 3 requests at one time: no traffic"):
        compare(trace=path, world=None, overrides=("model=no/such-model",))


REAL = (
    *("compare", "--trace", str(SAMPLES / "translation.jsonl"), "--json", "--run-dir", "run"),
    *("--approaches", "two-workers,static,tuned", "--loads", "recorded", "--profile", str(SHIPPED)),
    *("--budget", "5m"),
)


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.timeout(600)
def test_real_workers_are_compared_and_a_killed_run_leaves_none_and_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "run" / "journal.jsonl"
    with subprocess.Popen(
        [TUNER, *REAL], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        wait_until(lambda: journal.exists() and b'"replay"' in journal.read_bytes())
        everybody = {running.pid, *family(running.pid)}
        running.kill()
    wait_until(lambda: not any(map(lives, everybody)))
    done = subprocess.run([TUNER, *REAL], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    served = {name: row["numbers"] for name, row in rows(result, "recorded").items()}
    assert list(served) == ["two-workers", "static", "tuned"]
    assert all(each["requests_per_s"] > 0 and each["busy"] > 0 for each in served.values())
    assert served["static"]["held_mean_s"] > 0
