"""Folders of runs that somebody else has written in: one value is another, or a line or array."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.mutations import mutated

ODD: tuple[Any, ...] = (
    *(None, [], {}, "", "x", -1, 0, 1.5, True, 1e308, 10**30, 10**400, float("nan"), float("inf")),
    *("\x1b[2J\u202e", "../../owned", "/dev/zero", "\ud800", "9" * 5000, "$(touch owned)", "nan"),
    *([[[[[[]]]]]], [None], [1, 2, 3], {"a": {"b": []}}, {"__class__": "os.system"}),
)
GONE = object()
MOST = 6
"""Of a list so many entries are looked at."""


def change(run_dir: Path, rng: random.Random) -> str:
    """Change something in the folder of a run, and return what."""
    others = ["result.json"] if (run_dir / "result.json").exists() else []
    others += ["replays"] if (run_dir / "replays").exists() else []
    others += ["study.log"] if (run_dir / "study.log").exists() else []
    journal = "journal.jsonl" if (run_dir / "journal.jsonl").exists() else "windows.jsonl"
    name = rng.choice([journal] * 6 + others)
    if name == "replays":
        return _replay(rng.choice(sorted((run_dir / name).iterdir())), rng)
    path = run_dir / name
    if name == "study.log" or rng.random() < 0.15:
        path.write_bytes(mutated(path.read_bytes(), rng))
        return f"bytes of {name}"
    if name == "result.json":
        found, what = _other(json.loads(path.read_text()), rng)
        path.write_text(json.dumps(found))
        return f"{name}: {what}"
    return _journal(path, rng)


def _journal(path: Path, rng: random.Random) -> str:
    lines, said = path.read_text().splitlines(), list[str]()
    lines = [line for line in lines if line.endswith("}")]  # a watch's last one may be cut off
    for _ in range(rng.choice([1, 1, 1, 2])):
        place, chance = rng.randrange(len(lines)), rng.random()
        if chance < 0.06:
            del lines[place]
        elif chance < 0.12:
            lines.insert(place, lines[place])
        else:
            found, what = _other(json.loads(lines[place]), rng)
            lines[place] = json.dumps(found)
            said.append(f"line {place}: {what}")
    if rng.random() < 0.3:  # so that there is something left to do
        del lines[rng.randrange(1, len(lines) + 1) :]
        said.append(f"{len(lines)} lines")
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"{path.name}: {'; '.join(said)}"


def _other(content: Any, rng: random.Random) -> tuple[Any, str]:  # noqa: ANN401 - JSON
    place, value = rng.choice(list(_places(content))[1:] or [()]), rng.choice([*ODD, GONE, GONE])
    if not place:
        return value, "all"
    *above, last = place
    inside = content
    for one in above:
        inside = inside[one]
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value
    return content, f"{place} is {'gone' if value is GONE else repr(value)[:60]}"


def _places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
    yield place
    entries: list[tuple[Any, Any]] = []
    if isinstance(content, dict):
        entries = list(content.items())
    elif isinstance(content, list):
        entries = list(enumerate(content))[:MOST]
    for key, value in entries:
        yield from _places(value, (*place, key))


def _replay(path: Path, rng: random.Random) -> str:
    with np.load(path) as data:
        arrays = dict(data)
    name, how = rng.choice(sorted(arrays)), rng.randrange(5)
    old = arrays.pop(name)
    if how > 0:
        is_numbers = old.dtype.kind in "fi"
        huge = np.full(old.shape, rng.choice([1e308, -1e308, np.inf, np.nan, -5.0, 0.0]))
        arrays[name] = [
            old[:0] if old.ndim else np.zeros(3),
            huge if is_numbers else np.array("[]"),
            np.array(json.dumps(rng.choice(ODD[:8]))),
            np.concatenate([old, old]) if old.ndim else old,
        ][how - 1]
    np.savez_compressed(path, allow_pickle=False, **arrays)
    return f"{path.name}: {name}, in way {how}"
