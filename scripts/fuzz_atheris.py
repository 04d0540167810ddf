"""Fuzz the importers by coverage: python scripts/fuzz_atheris.py [-n N] [--corpus DIR] [FORMAT …].

atheris (``pip install -e '.[dev,fuzz]'``) changes files of each format and keeps the changes that
reach new code: half of them as tests/support/mutations.py damages files, half as libFuzzer changes
bytes. Each of N files must end in one clear refusal, or in rows and counts that reconcile, within
10 s and 2 GiB. The first one that does not is written to the folder given with --keep, and the
script exits with 1. ``scripts/fuzz_formats.py`` asks the same of files that are damaged blindly.
"""

import argparse
import random
import re
import subprocess  # libFuzzer ends its process, so that each format has one of its own
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

IN_THIS_PROCESS = "--libfuzzer"
SLOW_S = 10
MAX_MEMORY_MIB = 2048
MAX_BYTES = 4096
UNCAUGHT = "=== Uncaught Python exception"
STATS = {
    "coverage": re.compile(r"\bcov: (\d+)"),
    "files kept": re.compile(r"\bcorp: (\d+)"),
    "files": re.compile(r"stat::number_of_executed_units: +(\d+)"),
    "slowest s": re.compile(r"stat::slowest_unit_time_sec: +(\d+)"),
    "peak MiB": re.compile(r"stat::peak_rss_mb: +(\d+)"),
}


def fuzz_in_this_process(name: str, path: Path, libfuzzer: list[str]) -> None:
    """Fuzz one format by way of a file; libFuzzer never comes back from it."""
    import atheris  # noqa: PLC0415 - only here

    with atheris.instrument_imports(include=["tuner.trace.formats", "tuner.trace.tables"]):
        import tuner.trace.formats.registry  # noqa: F401, PLC0415 - every format
        from tests.support.format_examples import check_reconciled  # noqa: PLC0415 - first imported here
    from tests.support.mutations import mutated  # noqa: PLC0415 - not instrumented

    def read(content: bytes) -> None:
        check_reconciled(path, content, name, allow_text=True)

    def damaged(content: bytes, max_bytes: int, seed: int) -> bytes:
        rng = random.Random(seed)  # noqa: S311
        if rng.random() < 0.5:
            return mutated(content, rng)[:max_bytes]
        return bytes(atheris.Mutate(content, max_bytes))

    atheris.Setup([sys.argv[0], *libfuzzer], read, custom_mutator=damaged)
    atheris.Fuzz()


def fuzz(
    name: str, examples: list[str], asked: argparse.Namespace, corpus: Path
) -> dict[str, int] | None:
    """Fuzz one format in a process of its own; None where a file broke it."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(examples):
        (corpus / f"example-{number}").write_bytes(example.encode())
    asked.keep.mkdir(parents=True, exist_ok=True)
    options = (
        *(f"-runs={asked.n}", f"-seed={asked.seed}", f"-max_len={MAX_BYTES}", "-len_control=0"),
        *(f"-timeout={SLOW_S}", f"-rss_limit_mb={MAX_MEMORY_MIB}", "-print_final_stats=1"),
        f"-artifact_prefix={asked.keep}/{name}-",
    )
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory) as at:
        command = [
            sys.executable,
            __file__,
            IN_THIS_PROCESS,
            name,
            f"{at}/t",
            *options,
            str(corpus),
        ]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, errors="replace"
        )
    if done.returncode:
        said = done.stdout + done.stderr
        sys.stderr.write(f"{name}: exit {done.returncode}\n{said[said.find(UNCAUGHT) :][:4000]}\n")
        return None
    return {
        what: int(found[-1])
        for what, pattern in STATS.items()
        if (found := pattern.findall(done.stderr))
    }


def main() -> int:
    if sys.argv[1:2] == [IN_THIS_PROCESS]:
        fuzz_in_this_process(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    from tests.support.format_examples import EXAMPLES, TABLES  # noqa: PLC0415 - instrumented above

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", default=[*EXAMPLES], help="default: all")
    parser.add_argument("-n", type=int, default=100_000, help="files a format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-found"), help="what breaks something"
    )
    parser.add_argument("--corpus", type=Path, help="folder of the files that reach new code; kept")
    asked = parser.parse_args()
    broke = False
    with tempfile.TemporaryDirectory() as at:
        for name in asked.formats:
            begin_s = time.monotonic()
            examples = [one[name] for one in (EXAMPLES, TABLES) if name in one]
            found = fuzz(name, examples, asked, (asked.corpus or Path(at)) / name)
            broke |= found is None
            if found is not None:
                found["seconds"] = round(time.monotonic() - begin_s)
                print(f"{name}: " + ", ".join(f"{n:,} {what}" for what, n in found.items()))
                sys.stdout.flush()
    return int(broke)


if __name__ == "__main__":
    sys.exit(main())
