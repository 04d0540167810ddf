"""The seal of a generated file: it is known again by it, and an edit of it is seen. Pure."""

import hashlib
import re

from tuner.errors import TargetError

_OPEN = "0" * 64
OPEN = f"content sha256:{_OPEN}"
"""Stands once in a text that is to be sealed."""

_SEAL = re.compile(
    r"Written by tuner apply --to ([a-z-]+) from profile \S+; content sha256:([0-9a-f]{64})"
)
_HEAD_CHARACTERS = 4000


def mark(kind: str, digest: str) -> str:
    """Return the words that say whose file it is, to be sealed together with the rest."""
    return f"Written by tuner apply --to {kind} from profile {digest}; {OPEN}"


def sealed(text: str) -> str:
    """Put the digest of the text in its place."""
    return text.replace(OPEN, f"content sha256:{_digest(text)}", 1)


def kind_of(text: str) -> str | None:
    """Return which kind of tuner's files a text is; None for anybody else's."""
    found = _SEAL.search(text[:_HEAD_CHARACTERS])
    return None if found is None else found[1]


def check_replaceable(text: str, kind: str, *, source: str, force: bool) -> None:
    """Raise TargetError for a file that is not ours, and, unless forced, for an edited one."""
    found = _SEAL.search(text[:_HEAD_CHARACTERS])
    if found is None or found[1] != kind:
        whose = "not one that tuner wrote" if found is None else f"of kind {found[1]}"
        raise TargetError(
            f"{source}: is there already, and {whose}",
            hint=f"Name another file: {kind} is written whole, and nothing of this one would stay.",
        )
    content = text[: found.start(2)] + _OPEN + text[found.end(2) :]
    if found[2] != _digest(content) and not force:
        raise TargetError(
            f"{source}: was edited after tuner wrote it",
            hint="Keep your own rules and panels in another file; --force replaces this one.",
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
