"""Compare the table of vLLM's flags with the vLLM that is installed, and let the table grow.

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
from importlib.metadata import version

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tuner.engines.arguments import FLAGS, READ_FROM, TABLE
from tuner.engines.vllm.config import flags


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="add what is new to the table")
    options = parser.parse_args()
    here = flags()
    new = sorted(here.keys() - FLAGS.keys())
    changed = sorted(flag for flag in here.keys() & FLAGS.keys() if here[flag] != FLAGS[flag])
    for flag in changed:
        print(f"{flag}: means something else here than in the table", file=sys.stderr)
    for flag in new:
        print(f"{flag}: new")
    if changed or not options.update:
        return int(bool(changed or new))
    release = version("vllm").partition("+")[0]
    versions = sorted({*READ_FROM, release}, key=lambda item: tuple(map(int, item.split("."))))
    both = sorted({**here, **FLAGS}.items())
    table = ",\n  ".join(f"{json.dumps(flag)}: {json.dumps(each)}" for flag, each in both)
    text = f'{{\n"versions": {json.dumps(versions)},\n"flags": {{\n  {table}\n}}\n}}\n'
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
