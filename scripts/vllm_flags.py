"""Hold the table of vLLM's flags against the vLLM that is installed, and let the table grow.

    python scripts/vllm_flags.py [--update]

tuner/engines/vllm/flags.json has the flags of several versions of vLLM. Prints what the installed
parser says and the table does not, and exits with 1 if there is any; with --update that is added.
A flag that means something else in this vLLM than in the table is an error: nobody can tell which
vLLM will read a file that is deployed.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tuner.engines.vllm.arguments import grammar
from tuner.engines.vllm.flags import GRAMMAR, READ_FROM, TABLE, Grammar


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="add what is new to the table")
    options = parser.parse_args()
    here = grammar()
    known, found = GRAMMAR.meanings(), here.meanings()
    new = sorted(found.keys() - known.keys())
    other = sorted(flag for flag in found.keys() & known.keys() if found[flag] != known[flag])
    other += sorted(
        name for name, takes in kinds(here).items() if takes != kinds(GRAMMAR).get(name, takes)
    )
    for flag in other:
        print(f"{flag}: means something else here than in the table", file=sys.stderr)
    for flag in new:
        print(f"{flag}: new")
    if other or not options.update:
        return int(bool(other or new))
    release = version("vllm").partition("+")[0]
    versions = sorted({*READ_FROM, release}, key=lambda one: tuple(map(int, one.split("."))))
    TABLE.write_text(text_of(versions, union(GRAMMAR, here)), encoding="utf-8")
    return 0


def kinds(one: Grammar) -> dict[str, str]:
    """Return argument → what its flag takes, and whether a switch can be switched off."""
    takes = {name: kind for kind in ("words", "lists", "optional") for name in getattr(one, kind)}
    return {**takes, **{name: f"off: {bool(off)}" for name, off in one.switches.items()}}


def union(one: Grammar, other: Grammar) -> Grammar:
    def both(*names: Sequence[str]) -> list[str]:
        return sorted(set().union(*names))

    return Grammar(
        switches={
            name: both(one.switches.get(name, ()), other.switches.get(name, ()))
            for name in both(tuple(one.switches), tuple(other.switches))
        },
        words=both(one.words, other.words),
        lists=both(one.lists, other.lists),
        optional=both(one.optional, other.optional),
        also=dict(sorted({**one.also, **other.also}.items())),
    )


def text_of(versions: Sequence[str], table: Grammar) -> str:
    """Return the table as JSON with one flag a line."""
    parts = [f'"versions": {json.dumps(versions)}']
    for name, value in table._asdict().items():
        if isinstance(value, Mapping):
            lines = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()]
            parts.append(f'"{name}": {{\n  ' + ",\n  ".join(lines) + "\n}")
        else:
            parts.append(f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, value)) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
