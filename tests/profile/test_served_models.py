"""Which model a server serves, by what it lists."""

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.profile.served_models import ServedModel, listed, model_mismatch

FEW = {name: ENGINE[name] for name in ("model", "max_num_seqs", "max_num_batched_tokens")}


@pytest.mark.parametrize(
    ("model", "engine", "served", "is_same"),
    [
        (None, {}, [], True),  # which tells nothing
        (None, {}, [ServedModel("m", "m")], True),
        (None, {}, [ServedModel("alias", "m")], True),
        (None, {}, [ServedModel("m", "acme/other")], False),
        (None, {}, [ServedModel("m", "/mnt/models")], True),
        (None, {}, [ServedModel("n", "/mnt/models")], False),
        (None, {"served_model_name": "n"}, [ServedModel("n", "/mnt/models")], True),
        (None, {"served_model_name": ["k", "n"]}, [ServedModel("n")], True),
        (None, {"model": "acme/m"}, [ServedModel("x", "/h/models--acme--m/snapshots/9f")], True),
        (None, {"model": "acme/n"}, [ServedModel("acme/n", "/models--acme--m/snapshots/9")], False),
        (None, {}, [ServedModel("n"), ServedModel("m")], True),
        ("n", {}, [ServedModel("n"), ServedModel("m")], False),
        ("m", {}, [ServedModel("n"), ServedModel("m")], True),
        ("k", {}, [ServedModel("n")], True),  # whoever asks for it is told that there is none
    ],
)
def test_a_model_is_the_profiles_by_what_the_server_was_started_with_or_else_by_its_name(
    model: str | None, engine: dict[str, object], served: list[ServedModel], is_same: bool
) -> None:
    result = model_mismatch(profile(engine={**FEW, **engine}), served, model=model)
    assert (result is None) == is_same


@pytest.mark.parametrize(
    ("served", "is_sure"),
    [
        ([ServedModel("x", "acme/n")], True),
        ([ServedModel("x", "/hub/models--acme--n/snapshots/9f")], True),
        ([ServedModel("x", "/mnt/models")], False),
        ([ServedModel("x", "s3://bucket/n")], False),
        ([ServedModel("x")], False),
        ([ServedModel("x", "acme/n"), ServedModel("y", "/mnt/models")], False),
    ],
)
def test_another_model_is_sure_where_another_repository_was_fetched(
    served: list[ServedModel], is_sure: bool
) -> None:
    result = model_mismatch(profile(engine={**FEW, "model": "acme/m"}), served)
    assert result is not None
    assert result.is_sure == is_sure


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 99999, '{"data": null}', '{"data": [null, {"id": 1}]}'),
        '{"data": [{"id": "adapter", "root": "r", "parent": "m"}]}',
        "<html></html>",
    ],
)
def test_what_lists_no_models_is_no_list(text: str) -> None:
    assert listed(text) == ()
