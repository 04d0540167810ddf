"""The marks in numbers that people read: of thousands, and before fractions. Pure."""

import re
from collections.abc import Sequence

GROUPED = re.compile(r"[+-]?\d{1,3}(?:([.,'\u2019 \u00a0\u202f_])\d{3})(?:\1\d{3})*(?:[.,]0*)?")
"""A whole number with a mark between its thousands."""

_BY_COMMAS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_BY_POINTS = re.compile(r"-?[1-9]\d{0,2}(\.\d{3})+")
_WHOLE = re.compile(r"-?\d+")
_THREE_ZEROS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]000")
LARGE = 4
"""Digits of a whole number that would have a mark where thousands have one."""


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
    thousands or the fractions of every one, or a point those of every one that is not whole.

    >>> decimal_marks(["0,800", "1,250"]), decimal_marks(["850", "1,250"])
    (',', '.')
    >>> decimal_marks(["1,800", "1,250"]), decimal_marks(["987", "1.234"])
    ('.,', '.,')
    >>> decimal_marks(["0.987", "1.234"]), decimal_marks(["1987", "1.234"])
    ('.', '.')
    """
    marked = [text for text in texts if "," in text]
    if not marked:
        return _marks_with_points(texts)
    if not all(_BY_COMMAS.fullmatch(text) for text in marked):
        return ","
    one_comma = [text for text in marked if text.count(",") == 1 and "." not in text]
    return ".," if len(one_comma) == len(texts) else "."


def _marks_with_points(texts: Sequence[str]) -> str:
    if not are_pointed(texts):
        return "."
    if any(text.count(".") > 1 for text in texts):
        return ","
    whole = [text for text in texts if _WHOLE.fullmatch(text)]
    return ".," if whole and not any(map(is_large, whole)) else "."


def are_pointed(texts: Sequence[str]) -> bool:
    """Whether all points in these numbers may part their thousands, and there are some."""
    pointed = [text for text in texts if "." in text]
    return bool(pointed) and all(_BY_POINTS.fullmatch(text) for text in pointed)


def is_large(text: str) -> bool:
    """Whether this is a whole number that would have a mark where thousands have one."""
    return _WHOLE.fullmatch(text) is not None and len(text.lstrip("-")) >= LARGE


def may_be_thousands(texts: Sequence[str], mark: str) -> bool:
    """Whether this mark, and three zeros behind it, may part the thousands of these counts as well
    as fractions of nothing.

    >>> may_be_thousands(["1.000", "250"], "."), may_be_thousands(["1.000", "2500"], ".")
    (True, False)
    >>> may_be_thousands(["1.000", "250.0"], "."), may_be_thousands(["1000.000"], ".")
    (False, False)
    """
    return all(
        _THREE_ZEROS.fullmatch(text) if mark in text else not is_large(text) for text in texts
    )


def two_readings(text: str) -> str:
    """Return what a number may be by its mark.

    >>> two_readings("1.234"), two_readings("25,000")
    ('1.234 may be 1234 or 1.234', '25,000 may be 25000 or 25.000')
    """
    mark = "," if "," in text else "."
    return f"{text} may be {text.replace(mark, '')} or {text.replace(mark, '.')}"
