"""Every warning says what can be done about it."""

import ast
import itertools
import re
from collections.abc import Iterator

import pytest
from typer.main import get_command

from tests.support.places import ROOT
from tuner.commands.root import app

WARN = {
    "traffic/trace_warnings.py": ".*",
    "runs/sweep/sweep_warnings.py": ".*",
    "runs/result.py": "memory_marks|second_thoughts|_headroom_doubts",
    "twin/front_end.py": "strain",
    "twin/knee.py": "verdict_by_twin|_rivals|_machine_warnings|_drift_warnings",
    "twin/verdict_text.py": "kv_warnings",
    "commands/watch/view.py": "_notes",
}
"""Module → which of its functions make warnings."""

COMMANDS = "|".join(get_command(app).commands)  # type: ignore[attr-defined]

CURE = re.compile(
    r"[:;,] (add|capture|end|export|find|give|import|keep|look|lower|measure|raise|record|serve"
    r"|sweep|take|watch)\b|--[a-z]|a quieter (one|machine)|\{(cure|BEFORE_THAT)\}"
    rf"|\btuner ({COMMANDS})\b"
)
"""A thing to do, a command or an option."""

SHORT = 5
"""So few words are no warning."""


def warnings_in(module: str, functions: str) -> Iterator[str]:
    """Yield what these functions return, or put into a list, that is a sentence."""
    tree = ast.parse((ROOT / "tuner" / module).read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and re.fullmatch(functions, function.name):
            for node in ast.walk(function):
                for one in _said_by(node):
                    yield from (text for text in _texts(one) if len(text.split()) > SHORT)


def _said_by(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Return) and node.value is not None:
        return [node.value]
    if isinstance(node, ast.List):
        return node.elts
    is_append = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append")
    return node.args if is_append and isinstance(node, ast.Call) else []


def _texts(node: ast.expr) -> list[str]:
    """Return every text that an expression may be; none of one that is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join("".join(_texts(one)) for one in parts)]
        case ast.FormattedValue(value=value):
            return [f"{{{ast.unparse(value)}}}"]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return ["".join(both) for both in itertools.product(_texts(left), _texts(right))]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body), *_texts(orelse)]
        case _:
            return []


@pytest.mark.parametrize("module", WARN)
def test_every_warning_says_what_to_do(module: str) -> None:
    found = list(warnings_in(module, WARN[module]))
    assert found
    assert [text for text in found if not CURE.search(text)] == []
