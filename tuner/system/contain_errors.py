"""Contain errors inside a server: what fails beside its work is reported and never reaches it."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

Report = Callable[[Exception], None]


def contain_errors(
    report: Report, step: Callable[Given, Returned], *args: Given.args, **kwargs: Given.kwargs
) -> Returned | None:
    """Return what ``step`` returns; None after a failure, which ``report`` gets."""
    try:
        return step(*args, **kwargs)
    except Exception as problem:  # noqa: BLE001 - whatever it is
        report(problem)
        return None
