"""The marks in numbers that people read: of thousands, and before fractions. Pure."""

import re
from collections.abc import Sequence

GROUPED = re.compile(r"[+-]?\d{1,3}(?:([.,'\u2019 \u00a0\u202f_])\d{3})(?:\1\d{3})*(?:[.,]0*)?")
"""A whole number with a mark between its thousands."""


def plain_number(text: str, decimal: str) -> str:
    """Return a number as Python reads it: without marks of thousands, with a point.

    >>> plain_number("1.234,5", ",")
    '1234.5'
    """
    if decimal == ",":
        return text.replace(".", "").replace(",", ".")
    return text.replace(",", "") if "," in text and GROUPED.match(text) else text


def decimal_marks(texts: Sequence[str]) -> str:
    """Return the mark before the fractions of these numbers; both where a comma may part the
    thousands or the fractions of every one.

    >>> decimal_marks(["0,800", "1,250"]), decimal_marks(["850", "1,250"])
    (',', '.')
    >>> decimal_marks(["1,800", "1,250"])
    '.,'
    """
    marked = [text for text in texts if "," in text]
    if not all(re.fullmatch(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", text) for text in marked):
        return ","
    one_comma = [text for text in marked if text.count(",") == 1 and "." not in text]
    return ".," if marked and len(one_comma) == len(texts) else "."
