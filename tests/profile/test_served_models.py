"""Which model a server serves, by what it lists."""

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.profile.served_models import ServedModel, listed, model_mismatch

FEW = {name: ENGINE[name] for name in ("model", "max_num_seqs", "max_num_batched_tokens")}


@pytest.mark.parametrize(
    ("engine", "served", "is_same"),
    [
        ({}, [], True),  # which tells nothing
        ({}, [ServedModel("m", "m")], True),
        ({}, [ServedModel("alias", "m")], True),
        ({}, [ServedModel("m", "acme/other")], False),
        ({}, [ServedModel("m", "/mnt/models")], True),
        ({}, [ServedModel("n", "/mnt/models")], False),
        ({"served_model_name": "n"}, [ServedModel("n", "/mnt/models")], True),
        ({"served_model_name": ["k", "n"]}, [ServedModel("n")], True),
        ({"model": "acme/m"}, [ServedModel("x", "/h/models--acme--m/snapshots/9f")], True),
        ({"model": "acme/n"}, [ServedModel("acme/n", "/models--acme--m/snapshots/9")], False),
        ({}, [ServedModel("n"), ServedModel("m")], True),
    ],
)
def test_a_model_is_the_profiles_by_what_the_server_was_started_with_or_else_by_its_name(
    engine: dict[str, object], served: list[ServedModel], is_same: bool
) -> None:
    mismatch = model_mismatch(profile(engine={**FEW, **engine}), served)
    assert (mismatch is None) == is_same


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
    mismatch = model_mismatch(profile(engine={**FEW, "model": "acme/m"}), served)
    assert mismatch is not None
    assert mismatch.is_sure == is_sure


def test_what_a_server_lists_and_what_is_no_list() -> None:
    card = '{"id": "m", "object": "model", "root": "r", "parent": null, "max_model_len": 64}'
    adapter = '{"id": "adapter", "root": "r", "parent": "m"}'
    assert listed(f'{{"data": [{card}, {adapter}]}}') == (ServedModel("m", "r", 64),)
    for text in ("", "{", "[]", "null", "[" * 99999, '{"data": null}', '{"data": [{"id": 1}]}'):
        assert listed(text) == ()
