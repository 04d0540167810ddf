"""Secrets in commands and addresses: taken out before anything is shown or kept. Pure."""

import re
from collections.abc import Iterable

_SECRETS = (
    (re.compile(r"(://[^\s:@]*):\S*@"), r"\1@"),
    (re.compile(r"(://[^\s:/@\[]+):(?!\d*(?:[/?#\s]|$))\S*"), r"\1"),  # no host: no port either
    (re.compile(r"(?i)([?&][^=&#\s]*(?:pass|pwd|secret|token|key)[^=&#\s]*=)[^&#\s]*"), r"\1"),
)


def without_passwords(text: str) -> str:
    """Return a text without the passwords of the addresses in it.

    >>> without_passwords("--storage=postgresql://ann:secret@db/studies?sslpassword=other")
    '--storage=postgresql://ann@db/studies?sslpassword='
    """
    for pattern, kept in _SECRETS:
        text = pattern.sub(kept, text)
    return text


def public_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command without passwords and tokens; HF_TOKEN gives a token too.

    >>> public_words(["sweep", "--set", "hf-token=hf_1", "--set=hf_token=hf_2", "--set=seed=3"])
    ['sweep', '--set=seed=3']
    """
    kept: list[str] = []
    for word in words:
        option, equals, setting = word.partition("=")
        if not (option == "--set" and equals):
            option, setting = "", word
        key = setting.partition("=")[0]
        if key.strip().replace("-", "_").lower() != "hf_token":
            kept.append(without_passwords(word))
        elif not option and kept and kept[-1] == "--set":
            kept.pop()
    return kept
