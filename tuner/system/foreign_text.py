"""Make text that is not ours safe to show: of files, servers and requests. Pure."""


def printable(text: str) -> str:
    """Return a text on one line, every character that is not plainly seen as an escape.

    Line ends and the terminal's own commands are escaped, and so are characters that change the
    direction of writing, join or hide others: a reader sees what a program reads.

    >>> printable("a\\x1b[2J\\u202eb\\n")
    'a\\\\x1b[2J\\\\u202eb\\\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
