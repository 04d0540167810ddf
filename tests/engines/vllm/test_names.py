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


def test_what_has_become_something_else_is_gone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataclass that is none any more, a class that is a function, a function that is text."""
    monkeypatch.setattr(seams, "CALLED", {})
    monkeypatch.setattr(seams, "FIELDS", {"vllm.v1.request.Request": ["x"]})
    monkeypatch.setattr(seams, "SET_BY_INIT", {"vllm.inputs.engine.tokens_input": ["y"]})
    monkeypatch.setattr(seams, "ACCEPTED", {"vllm.__version__": ["z"]})
    assert seams.missing() == [
        "vllm.inputs.engine.tokens_input.y",
        "vllm.v1.request.Request.x",
        "vllm.__version__.z",
    ]


def test_the_parser_of_vllm_serve_is_in_one_of_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALLED", "FIELDS", "SET_BY_INIT", "ACCEPTED"):
        monkeypatch.setattr(seams, name, {})
    monkeypatch.setattr(seams, "SERVE_PARSERS", ("vllm.no.such", *seams.SERVE_PARSERS))
    assert seams.missing() == []
    monkeypatch.setattr(seams, "SERVE_PARSERS", ("vllm.no.such", "vllm.nor.such"))
    assert seams.missing() == ["vllm.no.such.make_arg_parser"]
