"""What a profile of somebody else's may set of an engine that is started here."""

import shlex
from pathlib import Path

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.commands.shared.trust import check_arguments, check_confirmed
from tuner.engines.seam import ArgumentValue
from tuner.errors import ProfileError, UsageError

pytestmark = pytest.mark.attack

SOURCE = Path("p.yaml")
EVIL = profile(
    engine={**ENGINE, "model": "tuner:tiny", "trust_remote_code": True, "worker_cls": "evil.W"}
)


def test_a_value_that_would_be_words_of_its_own_is_not_taken() -> None:
    words = ["1", "--tool-parser-plugin=./evil.py"]
    rude = profile(engine={**ENGINE, "api_server_count": words})
    with pytest.raises(ProfileError, match="engine: api_server_count="):
        check_confirmed(rude, (), source=SOURCE)


def test_what_changes_speed_and_memory_is_taken() -> None:
    check_confirmed(profile(), (), source=SOURCE)


@pytest.mark.parametrize(
    "asked", [{}, {"trust_remote_code": False, "worker_cls": "other.W"}, {"worker_cls": "evil.W"}]
)
def test_only_the_very_same_is_asked_for(asked: dict[str, ArgumentValue]) -> None:
    with pytest.raises(ProfileError, match="trust_remote_code=true"):
        check_arguments(EVIL, asked, source=SOURCE)
    check_arguments(EVIL, {"trust_remote_code": True, "worker_cls": "evil.W"}, source=SOURCE)


def test_what_a_hint_says_to_paste_is_one_word_for_a_shell() -> None:
    rude = profile(engine={**ENGINE, "worker_cls": "a.B; touch $(id) `id` 'x'"})
    with pytest.raises(ProfileError) as caught:
        check_confirmed(rude, (), source=SOURCE)
    pasted = caught.value.hint.partition(": ")[2]
    assert shlex.split(pasted) == ["--set", "worker_cls=a.B; touch $(id) `id` 'x'"]


@pytest.mark.parametrize("value", ["x" * 61, "a\x1b[2J"])
def test_what_cannot_be_shown_whole_is_not_to_be_pasted(value: str) -> None:
    with pytest.raises(ProfileError) as caught:
        check_arguments(profile(engine={**ENGINE, "chat_template": value}), {}, source=SOURCE)
    assert caught.value.hint.endswith(
        "ask for the same: --set NAME=VALUE for each, with the value in full"
    )


@pytest.mark.vllm
def test_who_asks_for_the_same_gets_it() -> None:
    both = ("trust_remote_code=true", "worker_cls=evil.W")
    check_confirmed(EVIL, both, source=SOURCE)
    with pytest.raises(ProfileError, match=r"engine: worker_cls=evil\.W: may"):
        check_confirmed(EVIL, both[:1], source=SOURCE)
    with pytest.raises(UsageError, match="max_num_batched_tokens=1: the profile has 8192"):
        check_confirmed(EVIL, ("max_num_batched_tokens=1",), source=SOURCE)
