"""HTML that escapes by construction: whatever is no ``Html`` is text. Pure.

Text that others wrote (names of models, traces, errors) can only become text: an element's children
and the values of its attributes are escaped here and nowhere else.
"""

import html
from collections.abc import Iterable

from tuner.system.printable import printable

VOID = {"meta", "br", "circle", "line", "path", "polyline", "rect", "col"}
"""Elements that have no children."""


class Html(str):
    """Text that is HTML already: made by ``tag`` and ``joined``, or a constant of ours."""

    __slots__ = ()


Child = Html | str | int | float | None
"""Anything that can be put into an element; None is nothing."""


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Html:
    """Return an element. ``class_`` and ``for_`` lose their underscore, other underscores become
    hyphens; an attribute that is None is left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            spelt = key.rstrip("_").replace("_", "-")
            words.append(f'{spelt}="{escaped(value)}"')
    opening = f"<{' '.join(words)}>"
    if name in VOID:
        assert not children
        return Html(f"{opening[:-1]}/>")
    return Html(f"{opening}{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    """Return children one after the other."""
    return Html(
        "".join(
            one if isinstance(one, Html) else escaped(one) for one in children if one is not None
        )
    )


def escaped(value: object) -> Html:
    """Return text as HTML that shows it and does nothing else: control characters, and those that
    hide or change direction, are spelt as escapes.

    >>> print(escaped("<script>\\u202e]]>"))
    &lt;script&gt;\\u202e]]&gt;
    """
    lines = str(value).split("\n")
    return Html(html.escape("\n".join(map(printable, lines))))
