"""What a number rests on."""

import platform
from pathlib import Path

from tuner.engines import provenance


def test_versions_are_of_what_is_installed() -> None:
    versions = provenance.versions()
    assert versions["python"] == platform.python_version()
    assert versions["numpy"]
    assert "" not in versions.values()


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


def test_a_model_on_a_hub_has_no_digest_here() -> None:
    assert provenance.model_digest("acme/no-such-model") is None
