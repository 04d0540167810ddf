"""Make text that is not ours safe to show. Pure."""

import html
import re


def printable(text: str) -> str:
    """Return text on one line in which nothing acts on what shows it: control characters, escape
    sequences, and characters that hide or change direction are spelt as escapes.

    >>> print(printable("a\\x1b[31mb\\nc\\u202ed"))
    a\\x1b[31mb\\nc\\u202ed
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def in_a_cell(text: str) -> str:
    """Return text that no spreadsheet runs: what begins like a formula is quoted as text.

    >>> in_a_cell("=1+1"), in_a_cell("ok")
    ("'=1+1", 'ok')
    """
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def in_markdown(text: str) -> str:
    """Return text on one line in which nothing is a tag, a link, a table or a variable of Grafana.

    >>> print(in_markdown("a_b | <i> $x"))
    a\\_b / &lt;i&gt; &#36;x
    """
    line = printable(" ".join(text.split())).replace("|", "/")
    line = re.sub(r"([\\`*_\[\]!~])", r"\\\1", html.escape(line, quote=False))
    return line.replace("$", "&#36;")
