"""Damage trace files and read them: python scripts/fuzz.py [-n 10000] [--seed N] [--keep FOLDER].

Every damaged file must end in one clear refusal, or in counts that add up: no traceback, no hang,
no text of the file in a message. Files that break this are kept, and the exit code is 1.
"""

import argparse
import json
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.mutations import mutated
from tuner.errors import TunerError
from tuner.trace import trace

SLOW_S = 10
MAX_MEMORY_BYTES = 4 * 2**30
MAX_FILE_BYTES = 100_000
PRIVATE = "PRIVATE-PROMPT"
"""Stands in the examples for the text of a prompt."""


def examples() -> list[Path]:
    """Return the files that the tests from outside import."""
    found = sorted((ROOT / "tests" / "outside" / "traces").glob("*/*"))
    files = [path for path in found if path.is_file() and path.suffix not in {".py", ".pyc"}]
    kept = [path for path in files if path.name != "expected.json"]
    return [path for path in kept if path.stat().st_size <= MAX_FILE_BYTES]


def outcome(path: Path) -> str:
    """Read a file; return what came of it. Raises what no reader may raise."""
    signal.alarm(SLOW_S)  # without a handler it ends the process: then it was the last one printed
    try:
        header = trace.load(path).header
    except TunerError as error:
        if PRIVATE in f"{error} {error.hint}":
            raise RuntimeError("a message holds text of the file") from error
        return "refused"
    finally:
        signal.alarm(0)
    if header.rows_read != header.rows_kept + sum(header.dropped.values()):
        raise RuntimeError(f"{header.rows_read} rows do not add up")
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=10_000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="for what breaks")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    files, found = examples(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.n):
            rng = random.Random(f"{options.seed}:{number}")  # noqa: S311 - no secret
            example = rng.choice(files)
            path = Path(folder) / example.name
            path.write_bytes(mutated(example.read_bytes(), rng))
            try:
                found[outcome(path)] += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
                found["FAILED"] += 1
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{number}-{example.name}").write_bytes(path.read_bytes())
                print(f"{number} {example.name}: {type(error).__name__}: {str(error)[:200]}")
            path.unlink()
    print(json.dumps(found))
    return int(found["FAILED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
