"""Files of traffic, and what `trace import` makes of each.

Every folder holds files and one ``expected.json``: a list of cases. A case names a file and its
options, and then either what the written trace says or what a refusal names. Values and exit codes
are kept, no wording. Write what the program does now into some folders, and review the difference:

    python -m tests.outside.traces.test_traces formats tables
"""

import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.outside.table import BAD_INPUT, OK, SHARED, USAGE, run

HERE = Path(__file__).parent
ABOUT = ("file", "options")
"""Keys of a case that do not tell what comes of it."""

PRIVATE = "PRIVATE-PROMPT"
"""Stands in files for the text of a prompt: no output may hold it."""

Case = dict[str, Any]


def cases(folder: Path) -> list[Case]:
    result: list[Case] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return result


def folders() -> list[Path]:
    return sorted(path.parent for path in HERE.glob("*/expected.json"))


def named(part: Path | Case) -> str:
    """Return the name of a folder, or of a case, for pytest."""
    words = [part.name] if isinstance(part, Path) else [part["file"], *part.get("options", ())]
    return " ".join(words).encode("ascii", "replace").decode()


@pytest.mark.parametrize(
    ("folder", "case"), [(each, case) for each in folders() for case in cases(each)], ids=named
)
def test_a_file_is_read_rightly_or_refused(folder: Path, case: Case, tmp_path: Path) -> None:
    source = place(folder, case["file"])
    if source is None:
        pytest.skip("data of third parties, which is not here")
    expected = {key: value for key, value in case.items() if key not in ABOUT}
    outcome = observed(source, case, tmp_path)
    for key in ("digest", "source"):
        if key not in expected:  # where the outcome was worked out by hand
            outcome.pop(key, None)
    if "refused" in expected:
        missing = [name for name in expected.pop("refused") if name not in outcome["refused"]]
        assert not missing, outcome["refused"]
        del outcome["refused"]
    assert outcome == expected


def place(folder: Path, name: str) -> Path | None:
    """Return where the file of a case is: here, or with the data that is shared."""
    return next((path for path in (folder / name, SHARED / name) if path.exists()), None)


def observed(source: Path, case: Case, scratch: Path) -> Case:
    """Import a file as a user would, and return what there is to see of it."""
    name = source.name
    if source.is_file():
        shutil.copyfile(source, scratch / name)
    else:
        name = str(source)  # a device, or a folder
    done = run(scratch, "trace import", name, *case.get("options", ()), "-o", "out.jsonl")
    assert PRIVATE not in done.stdout + done.stderr
    if done.code == OK:
        again = run(scratch, "trace import", "out.jsonl", "-o", "again.jsonl")
        assert again.code == OK, again.stderr
        assert rows_of(scratch / "again.jsonl") == rows_of(scratch / "out.jsonl")
        return written(scratch / "out.jsonl")
    assert done.code in {USAGE, BAD_INPUT}, done.stderr
    assert done.stdout == ""
    assert not (scratch / "out.jsonl").exists()
    return {"code": done.code, "refused": done.error}


def written(path: Path) -> Case:
    """Return what a canonical file says, in numbers."""
    content = path.read_bytes()
    assert PRIVATE.encode() not in content
    first, _, rest = content.partition(b"\n")
    header = json.loads(first)
    rows = [json.loads(line) for line in rest.splitlines()]
    start_ms = 0.0
    if origin := header.get("time_origin"):
        at = datetime.fromisoformat(origin)
        start_ms = at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1000
    statuses = Counter(row.get("status", "ok") for row in rows)
    digest = hashlib.sha256(f"block_size {header['block_size']}\n".encode() + rest)
    outcome = {
        "source": header["source"],
        "requests": len(rows),
        "input_tokens": sum(row.get("input_length") or 0 for row in rows),
        "output_tokens": sum(row.get("output_length") or 0 for row in rows),
        "first_ms": round(start_ms + min(row["timestamp"] for row in rows), 3),
        "last_ms": round(start_ms + max(row["timestamp"] for row in rows), 3),
        "ends": sum("e2e_ms" in row for row in rows),
        "hashes": sum(len(row.get("hash_ids", ())) for row in rows),
        "status": {status: count for status, count in statuses.items() if status != "ok"},
        "dropped": header["dropped"],
        "digest": digest.hexdigest()[:16],
    }
    assert header["rows_kept"] == len(rows)
    assert header["rows_read"] == len(rows) + sum(header["dropped"].values())
    return {key: value for key, value in outcome.items() if value or key == "requests"}


def rows_of(path: Path) -> list[bytes]:
    return sorted(path.read_bytes().splitlines()[1:])


def names_in(refusal: str, source: Path) -> list[str]:
    """Return what a refusal has to name: the line, options of the cure, and headings."""
    line = re.search(re.escape(source.name) + r"(:\d+)?", refusal)
    place_ = [line[0]] if line else []
    options = sorted(set(re.findall(r"--(?:columns|time-unit|allow-text)", refusal)))
    text = re.findall(r"holds text \(([^)]{1,60})\)", refusal)
    return [*place_, *text, *options]


def freeze(folder: Path) -> None:
    """Write into a folder's expectations what the program does now; cases by hand stay."""
    lines = []
    for case in cases(folder):
        source = place(folder, case["file"])
        if source is not None:
            with tempfile.TemporaryDirectory() as scratch:
                outcome = observed(source, case, Path(scratch))
            if "refused" in outcome:
                outcome["refused"] = names_in(outcome["refused"], source)
            case = {key: case[key] for key in ABOUT if key in case} | outcome  # noqa: PLW2901
        lines.append(json.dumps(case, ensure_ascii=False))
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    (folder / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or [folder.name for folder in folders()]:
        freeze(HERE / each)
