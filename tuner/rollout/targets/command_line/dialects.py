"""The dialects of command lines: a shell's, Compose's, systemd's, a variable's. Pure."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

_SAFE = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect: what is special in it, and how a word is written to be taken as it is."""

    name: str
    ends: str
    """Characters that end a command, the line feed among them; with a shell they begin another."""

    comments: bool
    expansion: re.Pattern[str]
    """What is replaced before a program sees it."""

    continued: re.Pattern[str] | None
    """How a line goes on in the next one; None: it does not."""

    literal: dict[str, str]
    """What is written twice to be there once."""

    c_escapes: bool
    """Backslashes mean what they mean in C, in either kind of quotes."""

    double_escapes: str
    """What a backslash escapes within double quotes."""

    write: Callable[[str], str]
    """A word → its spelling."""

    within: Callable[[str, str], str]
    """A part of a text that stands in quotes, and which quotes → its spelling."""


BRACES = r"\$\{(?:[^{}]|\{[^{}]*\})*\}"
"""``${NAME}``, and ``${NAME:-${OTHER}}``."""

_SHELL_EXPANSION = re.compile(
    BRACES + r"|\$[A-Za-z_][A-Za-z0-9_]*|\$[0-9@*#?$!-]|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"
)
_COMPOSE_EXPANSION = re.compile(BRACES + r"|\$[A-Za-z_][A-Za-z0-9_]*")
_NEXT_LINE = re.compile(r"\\\n")
_SYSTEMD_NEXT_LINE = re.compile(r"\\(?:\r\n|\n)(?:[ \t]*[#;][^\n]*\n)*")
"""Comments may stand between the lines."""

_SYSTEMD_EXPANSION = re.compile(r"\$\{[A-Za-z_][^}]*\}|\$[A-Za-z_][A-Za-z0-9_]*|%[A-Za-z]")


def _each_value(quote: Callable[[str], str]) -> Callable[[str], str]:
    """Quote the value of ``--flag=value`` and leave the flag readable."""

    def write(word: str) -> str:
        flag = re.match(r"--[A-Za-z0-9_.-]+=", word)
        return word if not flag else flag[0] + quote(word[flag.end() :])

    return lambda word: write(word) if write(word) != word else quote(word)


def _shell_quote(word: str) -> str:
    return word if _SAFE.fullmatch(word) else shlex.quote(word)


def shell_quote_within(word: str, quotes: str) -> str:
    """Return a shell's spelling of a word for a script that stands in quotes of this kind."""
    if quotes != "'":
        return SHELL.write(word)
    return _each_value(
        lambda one: one if _SAFE.fullmatch(one) else f'"{_shell_within(one, chr(34))}"'
    )(word)


def _shell_within(part: str, quotes: str) -> str:
    if quotes == "'":
        return part.replace("'", "'\\''")
    return re.sub(r'(["\\$`])', r"\\\1", part)


def _compose_within(part: str, quotes: str) -> str:
    escaped = part.replace("'", "'\\''") if quotes == "'" else re.sub(r'(["\\])', r"\\\1", part)
    return escaped.replace("$", "$$")


def _systemd_within(part: str, quotes: str) -> str:
    escaped = part.replace("\\", "\\\\").replace(quotes, f"\\{quotes}")
    escaped = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in escaped)
    return escaped.replace("$", "$$").replace("%", "%%")


def _systemd_quote(word: str) -> str:
    return word if _SAFE.fullmatch(word) else f'"{_systemd_within(word, chr(34))}"'


SHELL = Dialect(
    name="a shell",
    ends="\n;&|()",
    comments=True,
    expansion=_SHELL_EXPANSION,
    continued=_NEXT_LINE,
    literal={},
    c_escapes=False,
    double_escapes='"\\$`\n',
    write=_each_value(_shell_quote),
    within=_shell_within,
)
COMPOSE = Dialect(
    name="Compose",
    ends=";&|<>",
    comments=False,
    expansion=_COMPOSE_EXPANSION,
    continued=None,
    literal={"$$": "$"},
    c_escapes=False,
    double_escapes='"\\',
    write=_each_value(lambda word: _shell_quote(word).replace("$", "$$")),
    within=_compose_within,
)
SYSTEMD = Dialect(
    name="systemd",
    ends="",
    comments=False,
    expansion=_SYSTEMD_EXPANSION,
    continued=_SYSTEMD_NEXT_LINE,
    literal={"$$": "$", "%%": "%"},
    c_escapes=True,
    double_escapes="",
    write=_each_value(_systemd_quote),
    within=_systemd_within,
)
VARIABLE = replace(
    SHELL, name="a variable", ends="", comments=False, continued=None, write=_shell_quote
)
"""A variable: its words are split at blanks. Whether quotes count differs from place to place, so
nothing that would need quotes is written there."""


def is_plain(word: str) -> bool:
    """Whether the word is the same in every dialect."""
    return _SAFE.fullmatch(word) is not None
