"""Compare the article's approaches on the sample trace, and keep the tables of docs/journey.md.

    python scripts/journey.py real|simulated [options of tuner compare]

What came of it is docs/evidence/journey-real.json or journey-simulated.json; `make docs` renders
the page from both.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import evidence

TRACE = "traces/translation.jsonl"
PROFILE = "profiles/translation-tiny-cpu.yaml"
COMMANDS = {
    "real": ["compare", "--trace", TRACE, "--profile", PROFILE, "--force", "--sweep"],
    "simulated": [
        *("compare", "--trace", TRACE, "--engine", "sim"),
        *("--world", "examples/worlds/article.yaml", "--step", "90s", "--budget", "6h"),
    ],
}

ARTICLE = {
    "one worker": "2.2 at 25 concurrent",
    "two workers": "2.0 (0.91x)",
    "static batching": "5.9 (2.68x)",
    "continuous, untuned": "15.0 (6.82x), uniform lengths, 64 slots",
    "continuous, tuned": "3.5 (1.59x of another baseline), real lengths, 16 slots",
    "the whole profile": "10.7 in staging; 9.0 to 16.4 (1.82x) in production",
}
"""Approach → what the article reports."""


def main() -> int:
    which, *rest = sys.argv[1:] or [""]
    if which not in COMMANDS:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    command = [*COMMANDS[which], *rest]
    with tempfile.TemporaryDirectory() as folder:
        tuner = str(Path(sys.executable).with_name("tuner"))
        done = subprocess.run(  # noqa: S603 - the command is ours
            [tuner, *command, "-o", folder], cwd=evidence.ROOT, check=False
        )
        if done.returncode != 0:
            return done.returncode
        tables = (Path(folder) / "comparison.md").read_text(encoding="utf-8")
        result = json.loads((Path(folder) / "comparison.json").read_text(encoding="utf-8"))
    found = {"compare": f"tuner {' '.join(command)}", **tables_of(tables)}
    evidence.keep(f"journey-{which}", found, result["versions"])
    return 0


def tables_of(page: str) -> dict[str, Any]:
    """Return the tables that ``tuner compare`` wrote as Markdown, cell by cell, and the line below
    them."""
    tables: list[dict[str, Any]] = []
    *lines, last = page.splitlines()
    for line in lines:
        if line.startswith("**"):
            tables.append({"title": line.strip("*"), "rows": []})
        elif line.startswith("| "):
            tables[-1]["rows"].append(line[2:-2].split(" | "))
    for one in tables:
        one["head"], *one["rows"] = one["rows"]
    return {"tables": tables, "tuned": last}


def rendered(found: Mapping[str, Any]) -> str:
    """Return the tables in Markdown again."""
    parts = [
        f"**{one['title']}**\n\n{evidence.table(one['head'], one['rows'])}\n"
        for one in found["tables"]
    ]
    return "\n".join([*parts, found["tuned"]])


def kept(which: str) -> str:
    """Return the command, its tables, and what made them."""
    found = evidence.found(f"journey-{which}")
    command = f"```sh\n{found['compare']}\n```"
    return f"{command}\n\n{rendered(found)}\n\nBy {evidence.source(f'journey-{which}')}"


def beside() -> str:
    """Return the article's numbers beside those that were kept, as one table."""
    heads = ("approach", "article", "simulated: captured", "uniform", "this CPU: captured")
    served = [_served(which) for which in ("simulated", "real")]
    rows = [
        [
            *(approach, reported),
            *(one.get((approach, kind), "-") for one in served for kind in ("captured", "uniform")),
        ]
        for approach, reported in ARTICLE.items()
    ]
    return evidence.table([*heads, "uniform"], rows)


def _served(which: str) -> dict[tuple[str, str], str]:
    """Return (approach, lengths) → throughput and ratio, from the very heavy tables."""
    found = {}
    for table in evidence.found(f"journey-{which}")["tables"]:
        if not table["title"].startswith("very-heavy"):
            continue
        kind = "captured" if "as captured" in table["title"] else "uniform"
        for title, rate, ratio, *_ in table["rows"]:
            slots = re.search(r" \((\d+)\)$", title)
            shown = f"{rate} ({ratio.partition(' ')[0]})"
            approach = title.removesuffix(slots[0]) if slots else title
            found[approach, kind] = f"{shown}, {slots[1]} slots" if slots else shown
    return found


if __name__ == "__main__":
    sys.exit(main())
