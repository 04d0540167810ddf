"""No password of an address and no token of a hub is shown, however it is written."""

import pytest

from tuner.system.passwords import public_words, without_passwords


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:secret@h:5432/x", "postgresql://u@h:5432/x"),
        ("postgresql+psycopg://u:se@cr:et@h/x", "postgresql+psycopg://u@h/x"),
        ("redis://:secret@h/0", "redis://@h/0"),
        ("postgresql://h/x?user=u&password=secret&a=1", "postgresql://h/x?user=u&password=&a=1"),
        ("postgresql://u:secret", "postgresql://u"),
        ("postgresql://u@h:5432/x", "postgresql://u@h:5432/x"),
        ("postgresql://h:5432/x", "postgresql://h:5432/x"),
        ("postgresql://[::1]:5432/x", "postgresql://[::1]:5432/x"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        ("study.log", "study.log"),
    ],
)
def test_what_is_secret_is_left_out_and_nothing_else(address: str, shown: str) -> None:
    assert without_passwords(address) == shown
    assert without_passwords(f"--storage={address}") == f"--storage={shown}"


@pytest.mark.parametrize("key", ["hf_token", "hf-token", "HF-TOKEN", " hf_token"])
def test_no_command_shows_a_token(key: str) -> None:
    begin, end = ["sweep", "--trace", "a.jsonl"], ["--budget", "3m"]
    for words in (["--set", f"{key}=hf_secret"], [f"--set={key}=hf_secret"]):
        assert public_words([*begin, *words, *end]) == [*begin, *end]
    assert public_words(["--set", "seed=3"]) == ["--set", "seed=3"]
