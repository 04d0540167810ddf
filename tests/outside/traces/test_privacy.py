"""Text of a prompt, wherever it is in a file, is in no output: no message, no trace, no report."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.outside.table import OK, run
from tests.outside.traces.test_traces import PRIVATE, cases, folders

pytestmark = pytest.mark.attack

TEXT = f"{PRIVATE} of a patient, about her illness and what the doctor has written down for her"
FILES, MUTANTS = 200, 5
"""Files that are tried, and changes of each."""

SIZE = 20_000
"""Bytes of the largest of them."""


def chosen() -> list[tuple[Path, tuple[str, ...]]]:
    """Return files of text with the options of their first case, the same in every run."""
    result: dict[Path, tuple[str, ...]] = {}
    for folder in folders():
        for case in cases(folder):
            path = folder / case["file"]
            if path.is_file() and path.stat().st_size <= SIZE and is_strangers(path.read_bytes()):
                result.setdefault(path, tuple(case.get("options", ())))
    return random.Random(5).sample(sorted(result.items()), min(FILES, len(result)))


def is_strangers(content: bytes) -> bool:
    """Return whether it is text, and not in tuner's own form, whose names stay as they are."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and "\0" not in text and "tuner_trace" not in text


@pytest.mark.parametrize(
    ("path", "options"),
    [pytest.param(*each, id=f"{each[0].parent.name}/{each[0].name}") for each in chosen()],
)
def test_no_output_holds_text_from_a_file(
    tmp_path: Path, path: Path, options: tuple[str, ...]
) -> None:
    rng = random.Random(path.name)
    text = path.read_text(encoding="utf-8")
    for number in range(MUTANTS):
        source = tmp_path / f"{number}{path.suffix}"
        source.write_text(planted(text, rng), encoding="utf-8")
        allow = ("--allow-text",) if number % 2 and "--allow-text" not in options else ()
        done = run(tmp_path, "trace import", source, *options, *allow, "-o", f"out{number}.jsonl")
        assert PRIVATE not in done.stdout + done.stderr, source.read_text()
        if done.code == OK:
            written = tmp_path / f"out{number}.jsonl"
            assert PRIVATE not in written.read_text(encoding="utf-8"), source.read_text()
            shown = run(tmp_path, "trace show", written)
            assert PRIVATE not in shown.stdout + shown.stderr
        else:
            assert done.error


def planted(text: str, rng: random.Random) -> str:
    """Put the text in place of a line, or of a cell in some or all of the rows."""
    lines = text.splitlines(keepends=True)
    where = rng.randrange(len(lines))
    if rng.random() < 0.25:
        lines[where] = TEXT + "\n"
        return "".join(lines)
    rows = range(len(lines)) if rng.random() < 0.5 else [where]
    seed = rng.random()
    try:
        for row in rows:
            lines[row] = json.dumps(with_text(json.loads(lines[row]), random.Random(seed))) + "\n"
    except (json.JSONDecodeError, RecursionError):
        try:
            return json.dumps(with_text(json.loads(text), rng))
        except (json.JSONDecodeError, RecursionError):
            pass
        mark = max(",;\t|", key=text.count)
        column = rng.randrange(10)
        for row in rows:
            cells = lines[row].rstrip("\r\n").split(mark)
            cells[column % len(cells)] = TEXT.replace(",", "")
            lines[row] = mark.join(cells) + "\n"
    return "".join(lines)


def with_text(value: Any, rng: random.Random) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value in which one value, or one key, is the text."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {TEXT if name == key else name: each for name, each in value.items()}
        return value | {key: with_text(value[key], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], with_text(value[place], rng), *value[place + 1 :]]
    return TEXT
