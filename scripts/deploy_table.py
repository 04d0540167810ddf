"""Write docs/deploy-table.md: which deployment files `tuner apply` edits, and what it refuses.

    python scripts/deploy_table.py

The rows are the cases of tests/outside/deploy, so that the table cannot say more than is tested.
"""

import re
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.outside.deploy.test_deploy import HERE, laid_out
from tests.outside.table import run
from tuner.rollout.find import KINDS, kind_of

REFUSED = (
    ("more flags may come from a variable or a command", r"may hold more flags"),
    ("the value is in a variable or a template that the file does not set", r"decided elsewhere"),
    ("the file starts several servers in one script", r"it starts \d servers"),
    ("two servers could be meant (`--container` chooses)", r"which of its"),
    ("the value is behind an anchor or a service that others use", r"cannot be edited safely"),
    ("quotes or here-documents that cannot be read", r"nothing closes|here-document|quotes"),
    ("nothing in it starts vLLM", r"is not seen to start vLLM"),
    ("another model, GPU, vLLM or parallelism (exit code 6)", r"measured elsewhere"),
)


def tried(case: Path) -> tuple[str, str]:
    """Return the kind of a case's file, and what the command says in the end."""
    file = next(each for each in case.glob("before*") if each.stem == "before")
    with tempfile.TemporaryDirectory() as folder:
        words = laid_out(case, file, Path(folder), "lf")
        done = run(Path(folder), "apply", "profile.yaml", *words)
    return kind_of(PurePath(file.name), file.read_text()), done.stderr


def shown(command: str) -> str:
    return re.sub(r"\{(file|path|unit)\}", lambda found: found[1].upper(), command)


def main() -> None:
    edited = Counter(tried(case)[0] for case in (HERE / "edited").iterdir())
    reasons: dict[str, set[str]] = defaultdict(set)
    for case in (HERE / "refused").iterdir():
        kind, said = tried(case)
        for reason, pattern in REFUSED:
            if re.search(pattern, said):
                reasons[reason].add(KINDS[kind]["is"] if kind else "a file of no known kind")
                break
    lines = ["| `--to` | file | cases edited | then |", "|---|---|---|---|"]
    lines += [
        f"| {kind} | {about['is']} | {edited[kind]} | `{shown(about['start'])}` |"
        for kind, about in KINDS.items()
        if edited[kind]
    ]
    lines += ["", "| refused, with the flags to paste, where | tried in |", "|---|---|"]
    lines += [f"| {reason} | {len(reasons[reason])} kinds |" for reason, _ in REFUSED]
    text = "\n".join(lines) + "\n"
    (ROOT / "docs" / "deploy-table.md").write_text(text, encoding="utf-8")
    print(text, len(text.split()), "words")


if __name__ == "__main__":
    main()
