"""Damage files of every format and read them: python scripts/fuzz_formats.py [-n N] [FORMAT …].

Each of N damaged files of each format must end in one clear refusal, or in rows and counts that
reconcile: no traceback, no hang, no growth of memory. What breaks that is written to the folder
given with --keep, and the script exits with 1.
"""

import argparse
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.format_examples import EXAMPLES, check_reconciled
from tests.support.mutations import mutated

SLOW_S = 10.0
MAX_MEMORY_BYTES = 2 * 2**30
REPORTED = 5
"""Failures of one format that are shown; the rest is counted."""


class TooSlowError(Exception):
    """One small file has kept the reader busy for SLOW_S."""


def on_alarm(signum: int, frame: object) -> None:
    raise TooSlowError(f"{signum} {frame}")


def fuzz(name: str, count: int, seed: int, path: Path, keep: Path | None) -> Counter[str]:
    """Return how often files were read, read in part, refused, and how often that failed."""
    example = EXAMPLES[name].encode()
    found: Counter[str] = Counter()
    for number in range(count):
        content = mutated(example, random.Random(f"{seed}:{name}:{number}"))  # noqa: S311
        signal.setitimer(signal.ITIMER_REAL, SLOW_S)
        try:
            counts = check_reconciled(path, content, name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
            found["FAILED"] += 1
            if found["FAILED"] <= REPORTED:
                report(name, number, error, content, keep)
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if counts is None:
            found["refused"] += 1
        else:
            found["read whole" if counts[0] == counts[1] else "read in part"] += 1
            found["rows read"] += counts[0]
            found["rows dropped"] += counts[0] - counts[1]
    return found


def report(name: str, number: int, error: Exception, content: bytes, keep: Path | None) -> None:
    where = traceback.extract_tb(error.__traceback__)[-1]
    sys.stderr.write(
        f"{name} #{number}: {type(error).__name__}: {str(error)[:200]} "
        f"at {where.filename}:{where.lineno}\n"
    )
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{name}-{number}").write_bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", default=[*EXAMPLES], help="default: all")
    parser.add_argument("-n", type=int, default=100_000, help="files a format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files that break something")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, on_alarm)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as at:  # noqa: S108
        for name in asked.formats:
            begin_s = time.monotonic()
            found = fuzz(name, asked.n, asked.seed, Path(at) / "t", asked.keep)
            memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            took_s = time.monotonic() - begin_s
            results[name] = {**found, "seconds": round(took_s, 1), "peak MiB": round(memory_mib)}
            if not asked.json:
                print(f"{name}: " + ", ".join(f"{n:,} {what}" for what, n in results[name].items()))
                sys.stdout.flush()
    if asked.json:
        print(json.dumps(results))
    return int(any(found.get("FAILED") for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
