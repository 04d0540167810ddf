"""Measure how fast and in how much memory traces are read, beside pandas where it is installed.

    python scripts/bench_reading.py --rows 10000000

Two files of made-up requests are written to a temporary folder: Azure's CSV and tuner's JSON lines.
Each is imported and summarised by `tuner trace`, each in a process of its own, and read by pandas
(`pip install pandas`), which checks nothing and holds everything in memory; all in one run, so that
the ratio carries over to other machines. Peak memory is the child's resident set.
"""

import argparse
import importlib.util
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

TUNER = str(Path(sys.executable).with_name("tuner"))
PANDAS = {
    "azure.csv": "import pandas, sys; pandas.read_csv(sys.argv[1])",
    "canonical.jsonl": "import pandas, sys; pandas.read_json(sys.argv[1], lines=True)",
}
CHUNK = 100_000


def requests(rows: int) -> Iterator[tuple[float, int, int]]:
    """Yield (arrival in ms, prompt tokens, output tokens)."""
    rng = np.random.default_rng(0)
    at_ms = 0.0
    for begin in range(0, rows, CHUNK):
        size = min(CHUNK, rows - begin)
        arrivals = at_ms + np.cumsum(rng.exponential(5.0, size))
        at_ms = float(arrivals[-1])
        lengths = rng.integers(1, 8000, (2, size))
        yield from zip(arrivals.tolist(), *lengths.tolist(), strict=True)


def write_azure(path: Path, rows: int) -> None:
    origin = datetime(2023, 11, 16, tzinfo=UTC)
    with path.open("w", newline="") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
        for at_ms, prompt, output in requests(rows):
            stamp = origin + timedelta(milliseconds=at_ms)
            file.write(f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}\r\n")


def write_canonical(path: Path, rows: int) -> None:
    with path.open("w") as file:
        file.write('{"tuner_trace":1,"time_unit":"ms"}\n')
        for at_ms, prompt, output in requests(rows):
            file.write(
                f'{{"timestamp":{at_ms:.3f},"input_length":{prompt},"output_length":{output}}}\n'
            )


def measured(command: Sequence[str]) -> tuple[float, float, float]:
    """Run a command; return wall seconds, CPU seconds and peak memory in MiB of that process."""
    begin_s = time.monotonic()
    child = os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: failed")
    return time.monotonic() - begin_s, usage.ru_utime + usage.ru_stime, _mib(usage)


def _mib(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / 1024


def report(what: str, rows: int, command: Sequence[str]) -> None:
    wall_s, cpu_s, peak_mib = measured(command)
    print(
        f"{what:34} {rows / wall_s:>10,.0f} rows/s  {wall_s:6.1f} s  CPU {cpu_s:6.1f} s"
        f"  peak {peak_mib:6,.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    rows = options.rows
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("azure.csv", write_azure), ("canonical.jsonl", write_canonical)):
            path = Path(folder) / name
            write(path, rows)
            output = str(Path(folder) / "imported.jsonl")
            report(
                f"{name}: tuner trace import", rows,
                [TUNER, "trace", "import", str(path), "-o", output, "--force"],
            )  # fmt: skip
            report(f"{name}: tuner trace show", rows, [TUNER, "trace", "show", "--json", str(path)])
            if importlib.util.find_spec("pandas") is not None:
                report(f"{name}: pandas", rows, [sys.executable, "-c", PANDAS[name], str(path)])
            path.unlink()


if __name__ == "__main__":
    main()
