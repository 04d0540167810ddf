"""`--dry-run`: what would be run and in what memory, said before anything is started."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_nvml import GIB, Card, install
from tests.support.in_process import tuner
from tests.support.places import ROOT
from tuner.commands.forecast import cache_of
from tuner.engines.models.memory import ModelMemory, memory_of

pytestmark = pytest.mark.usefixtures("by_few_draws")

SIM = ("--world", "world.yaml", "--trace", "prod.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dry")
    shutil.copy(ROOT / "traces" / "translation.jsonl", path / "prod.jsonl")
    shutil.copy(ROOT / "examples" / "worlds" / "article.yaml", path / "world.yaml")
    assert tuner(path, "sweep", *SIM).returncode == 0
    shutil.rmtree(path / "runs")
    return path


def test_a_sweep_shows_what_it_would_do(folder: Path) -> None:
    done = tuner(folder, "sweep", *SIM, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert not (folder / "runs").exists()
    result = json.loads(done.stdout)
    assert "at most 15 min of engine: 2 starts of 1 min each" in result["facts"]["time"]
    assert result["kv_blocks"] == 1200
    assert result["longest_fit"] == 48  # of 25 blocks, 400 tokens
    assert result["next"].startswith("tuner sweep ")
    assert "--dry-run" not in result["next"]


def test_of_a_real_engine_it_takes_neither_vllm_nor_torch(folder: Path) -> None:
    code = (
        "import sys; from tuner.commands.options import SweepOptions; "
        "from tuner.commands.sweep import run; from pathlib import Path; "
        "run(SweepOptions(trace=Path('prod.jsonl'), model='tuner:tiny', dry_run=True)); "
        "assert not {'vllm', 'torch'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def config(**changes: object) -> dict[str, object]:
    return {
        "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3,
        "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10,
        "torch_dtype": "bfloat16", **changes,
    }  # fmt: skip


def of_config(tmp_path: Path, content: object, **arguments: str) -> ModelMemory | str:
    (tmp_path / "config.json").write_text(json.dumps(content))
    return memory_of({"model": str(tmp_path), **arguments})


def test_weights_and_kv_cache_are_counted_from_the_config(tmp_path: Path) -> None:
    attention = 8 * 4 * (2 * 2 + 2 * 1)  # queries and outputs of 2 heads, keys and values of 1
    layer = attention + 3 * 8 * 16 + 2 * 8
    weights = 3 * layer + 2 * 8 * 10 + 8
    assert of_config(tmp_path, config()) == ModelMemory(2 * weights, 2 * 3 * 1 * 4 * 2)
    eight_bits = of_config(tmp_path, config(), kv_cache_dtype="fp8")
    assert eight_bits == ModelMemory(2 * weights, 2 * 3 * 1 * 4)


@pytest.mark.parametrize(
    ("total", "source"),
    [(10 * GIB, "92% of 1 x 10.0 GiB less weights"), (None, "no GPU here whose memory")],
)
def test_the_cache_of_a_gpu_is_vllms_share_of_its_memory_where_it_tells_that(
    total: int | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Card("GPU-a", memory_total=total))
    monkeypatch.setattr("tuner.engines.provenance.is_cpu_build", lambda: False)
    model = ModelMemory(weight_bytes=GIB, kv_bytes_per_token=1024)
    result = cache_of({}, model)
    assert source in (result if isinstance(result, str) else result.source)
