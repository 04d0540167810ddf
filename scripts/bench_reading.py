"""Measure how fast and in how much memory traces are read, beside pandas, polars and DuckDB.

    python scripts/bench_reading.py --rows 10000000 --others PYTHON

Files of made-up requests are written to a temporary folder: a CSV with dates, tuner's JSON lines,
and both packed with gzip. Each is imported and summarised by `tuner trace`, each in a process of
its own, and read whole by those of the three that PYTHON, an interpreter, has (by default this
one's); all in one run, so that the ratios carry over to other machines. They check nothing. CPU
seconds are of all threads, peak memory is the child's resident set.
"""

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

TUNER = str(Path(sys.executable).with_name("tuner"))
OTHERS = {
    ("pandas", "csv"): "pandas.read_csv(path, parse_dates=[0])",
    ("pandas", "jsonl"): "pandas.read_json(path, lines=True)",
    ("polars", "csv"): "polars.read_csv(path, try_parse_dates=True)",
    ("polars", "jsonl"): "polars.read_ndjson(path)",
    ("duckdb", "csv"): "duckdb.sql(f'create table t as from read_csv({path!r})')",
    ("duckdb", "jsonl"): "duckdb.sql(f'create table t as from read_json({path!r})')",
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


def has(python: str, library: str) -> bool:
    command = [python, "-c", f"import {library}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--others", default=sys.executable, help="interpreter that has them")
    options = parser.parse_args()
    rows, python = options.rows, options.others
    found = [name for name in ("pandas", "polars", "duckdb") if has(python, name)]
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "imported.jsonl")
        for name, write in (("azure.csv", write_azure), ("canonical.jsonl", write_canonical)):
            path = Path(folder) / name
            write(path, rows)
            packed = path.with_name(f"{name}.gz")
            with path.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as file:
                shutil.copyfileobj(plain, file, 2**20)
            for one in (path, packed):
                trace = [TUNER, "trace"]
                show = [*trace, "show", "--json", str(one)]
                report(f"{one.name}: tuner trace show", rows, show)
                window = ["--window", "0s+3600s", "--force", "-o", output]
                report(f"{one.name}: tuner trace cut", rows, [*trace, "cut", str(one), *window])
                whole = [*trace, "import", str(one), "-o", output, "--force"]
                report(f"{one.name}: tuner trace import", rows, whole)
                for library in found:
                    call = OTHERS[library, one.name.split(".")[1]]
                    code = f"import sys, {library}; path = sys.argv[1]; {call}"
                    report(f"{one.name}: {library}", rows, [python, "-c", code, str(one)])
            path.unlink()
            packed.unlink()


if __name__ == "__main__":
    main()
