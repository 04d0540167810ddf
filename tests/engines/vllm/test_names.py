"""Every unstable name of vLLM that tuner reads. When vLLM moves, this says which are gone."""

import pytest

from tuner.engines.vllm import seams

pytestmark = pytest.mark.vllm


def test_every_name_is_there() -> None:
    assert seams.missing() == []


def test_what_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "CALLED", {"vllm.no.such": ["x"], "vllm.v1.request.Request": ["y"]})
    monkeypatch.setattr(seams, "FIELDS", {"vllm.outputs.CompletionOutput": ["token_ids", "z"]})
    assert seams.missing() == [
        "vllm.no.such",
        "vllm.v1.request.Request.y",
        "vllm.outputs.CompletionOutput.z",
    ]
