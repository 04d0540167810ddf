"""Secrets in commands and addresses: taken out before anything is shown or kept. Pure."""

import re
from collections.abc import Iterable

_QUERY = re.compile(r"([?&][^=&#]*(?:pass|pwd|secret|token|key)[^=&#]*=)([^&#\s]*)", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Return a text without the passwords of the addresses in it.

    >>> without_passwords("--storage=postgresql://ann:secret@db/studies?sslpassword=other")
    '--storage=postgresql://ann@db/studies?sslpassword='
    """
    for word in re.findall(r"\S+://\S+", text):
        scheme, _, rest = word.partition("://")
        login, password, host = _parts(rest)
        kept = f"{scheme}://{login}{host}" if password else word
        text = text.replace(word, _QUERY.sub(r"\1", kept))
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


def _parts(rest: str) -> tuple[str, str, str]:
    """Return user, password and host; without a host, what can be no port is taken for one."""
    login, at, host = rest.rpartition("@")
    if at:
        user, _, password = login.partition(":")
        return user, password, at + host
    user, _, password = rest.partition(":")
    is_port = re.match(r"\d*([/?#]|$)", password) is not None or user.startswith("[")
    return ("", "", rest) if is_port else (user, password, "")
