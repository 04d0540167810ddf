"""What a number rests on."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from tests.support.profiles import profile
from tuner.commands.shared.machine import Machine, check_machine
from tuner.engines import provenance
from tuner.engines.vllm import supported
from tuner.errors import GateError


@pytest.mark.parametrize("metadata", [None, "Metadata-Version: 2.1\nName: vllm\n"])
def test_a_vllm_without_a_version_is_there_and_unlike_every_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str | None
) -> None:
    """A checkout on PYTHONPATH, and what a broken installation leaves; also with the backport of
    importlib.metadata, which is imported wherever vLLM is."""
    if importlib.util.find_spec("importlib_metadata"):
        importlib.import_module("importlib_metadata")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    if metadata:
        (tmp_path / "vllm.dist-info").mkdir()
        (tmp_path / "vllm.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert provenance.versions()["vllm"] == "unknown"
    assert not provenance.is_cpu_build()
    assert supported.installed() == "unknown"
    here = Machine({"name": "a machine"}, provenance.versions())
    measured = profile(device=dict(here.device), versions={"vllm": "0.32.0"})
    with pytest.raises(GateError, match=r"measured with vllm 0\.32\.0, here it is unknown$"):
        check_machine(measured, here)


@pytest.mark.attack
def test_variables_that_change_an_engine_are_kept_and_no_secret_or_place() -> None:
    kept = {
        "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "CUDA_VISIBLE_DEVICES": "0,1", "VLLM_CPU_OMP_THREADS_BIND": "0-3|4-7",
        "VLLM_USE_DEEP_GEMM": "0", "NCCL_P2P_DISABLE": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G,1=4G",
    }  # fmt: skip
    others = {
        "VLLM_API_KEY": "sesame", "HF_TOKEN": "sesame", "S3_SECRET_ACCESS_KEY": "sesame",
        "VLLM_HOST_IP": "10.0.0.1", "VLLM_PORT": "8000", "VLLM_CACHE_ROOT": "/srv",
        "VLLM_RPC_BASE_PATH": "/srv", "VLLM_NO_USAGE_STATS": "1", "PATH": "/bin", "HOME": "/",
        "OMP_TOOL_LIBRARIES": "/srv/tool.so", "VLLM_USE_THIS": "http://ann:sesame@host",
        "VLLM_LOGGING_LEVEL": "DEBUG", "OMP_PLACES": "", "KMP_AFFINITY": "x" * 101,
    }  # fmt: skip
    assert provenance.environment({**kept, **others}) == kept


def test_a_models_digest_follows_its_description_and_the_size_of_its_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    first = provenance.model_digest(str(tmp_path))
    assert first is not None
    assert first.startswith("sha256:")
    assert first == provenance.model_digest(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    second = provenance.model_digest(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"abcd")
    assert len({first, second, provenance.model_digest(str(tmp_path))}) == 3
