"""Passwords in addresses: taken out before anything is shown or kept. Pure."""

import re
import urllib.parse

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


def passwords_in(address: str) -> list[str]:
    """Return the passwords of an address, as they are written and as they are meant."""
    found = [_parts(address.partition("://")[2])[1]]
    found += [value for _, value in _QUERY.findall(address)]
    meant = [urllib.parse.unquote_plus(one) for one in found]
    return sorted({one for one in (*found, *meant) if one}, key=len, reverse=True)


def _parts(rest: str) -> tuple[str, str, str]:
    """Return user, password and host; without a host, what can be no port is taken for one."""
    login, at, host = rest.rpartition("@")
    if at:
        user, _, password = login.partition(":")
        return user, password, at + host
    user, _, password = rest.partition(":")
    is_port = re.match(r"\d*([/?#]|$)", password) is not None or user.startswith("[")
    return ("", "", rest) if is_port else (user, password, "")
