"""The console of every command: results on stdout, progress on stderr."""

from rich.console import Console

PLAIN_WIDTH = 100
"""Where stdout is no terminal, so that a log has the same lines everywhere."""

LONG_MS = 100_000
"""From here on a time is told in seconds."""


def console_for(*, at_least: int = 0) -> Console:
    """Return the console for stdout; a narrower terminal wraps, which beats numbers cut off."""
    console = Console(highlight=False)
    if not console.is_terminal:
        return Console(highlight=False, width=PLAIN_WIDTH, color_system=None)
    return console if console.width >= at_least else Console(highlight=False, width=at_least)


def shown_ms(value_ms: float | None) -> str:
    """Return a time for a column that is headed with ms.

    >>> shown_ms(12.34), shown_ms(1234.5), shown_ms(250_000.0), shown_ms(None)
    ('12.3', '1,234', '250s', '-')
    """
    if value_ms is None:
        return "-"
    if value_ms >= LONG_MS:
        return f"{value_ms / 1e3:,.0f}s"
    return f"{value_ms:,.1f}" if value_ms < 100 else f"{value_ms:,.0f}"
