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
        ("postgresql://[::1]:5432/x", "postgresql://[::1]:5432/x"),
    ],
)
def test_what_is_secret_is_left_out_and_nothing_else(address: str, shown: str) -> None:
    assert without_passwords(f"--storage={address}") == f"--storage={shown}"


def test_no_command_shows_a_token() -> None:
    for words in (["--set", "HF-TOKEN=hf_secret"], ["--set=hf_token=hf_secret"]):
        assert public_words(["sweep", *words, "--budget", "3m"]) == ["sweep", "--budget", "3m"]
    assert public_words(["--set", "seed=3"]) == ["--set", "seed=3"]
