"""Make text that is not ours safe to show. Pure."""


def printable(text: str) -> str:
    """Return text on one line in which nothing acts on what shows it: control characters, escape
    sequences, and characters that hide or change direction are spelt as escapes.

    >>> print(printable("a\\x1b[31mb\\nc\\u202ed"))
    a\\x1b[31mb\\nc\\u202ed
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
