"""Measure how fast and in how much memory traces are read, beside pandas, polars and DuckDB.

    python scripts/bench_reading.py --rows 10000000 --others .bench/bin/python --keep reading
    python scripts/bench_reading.py --file canonical.jsonl ...

Files of made-up requests are written to a temporary folder: a CSV with dates, tuner's JSON lines,
and both packed with gzip. Each is read by tuner into columns, which every command begins with, and
by the commands of `tuner trace`; and read whole by those of the three that another interpreter has
(`--others`, by default this one), which check nothing. `import` writes all rows again as JSON
lines, so DuckDB does that too. Each is a process of its own, all in one run, so that the ratios
carry over to other machines. CPU seconds are of all threads, peak memory is the child's resident
set. What is found is kept after every file, with the commit that it is of; `--file` measures one
anew, in some minutes, and keeps what was found for the others.
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
from importlib.metadata import version
from pathlib import Path

import evidence
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
WRITE = "copy (from {read}({path!r})) to {out!r} (format json)"
READ = """
from pathlib import Path
from tuner.trace.stream import Input, scan
scan(Input(Path({path!r})), lambda _: None)
"""
WRITTEN, IMPORTED = "duckdb, and written", "`tuner trace import`"
KINDS = {
    "azure.csv": "CSV",
    "azure.csv.gz": "CSV, gzip",
    "canonical.jsonl": "JSON lines",
    "canonical.jsonl.gz": "JSON lines, gzip",
}
HEAD = ["file", "read by", "CPU", "times the fastest other", "peak memory", "commit"]
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


def commands(path: Path, python: str, others: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (what, command line) for all that reads a file; the others first."""
    kind, out = path.name.split(".")[1], str(path.with_name("out.jsonl"))
    for library in others:
        call = OTHERS[library, kind]
        yield library, [python, "-c", f"import sys, {library}; path = {str(path)!r}; {call}"]
    if "duckdb" in others:
        read = "read_csv" if kind == "csv" else "read_json"
        write = WRITE.format(read=read, path=str(path), out=out)
        yield WRITTEN, [python, "-c", f"import duckdb; duckdb.sql({write!r})"]
    yield "tuner, into columns", [sys.executable, "-c", READ.format(path=str(path))]
    trace, into = [TUNER, "trace"], ["--force", "-o", out]
    yield "`tuner trace show`", [*trace, "show", "--json", str(path)]
    yield "`tuner trace cut`, an hour", [*trace, "cut", str(path), "--window", "0s+3600s", *into]
    yield IMPORTED, [*trace, "import", str(path), *into]


def rows_of(path: Path, python: str, others: Sequence[str]) -> list[list[str]]:
    """Return a row of the table for each reader of a file, and print what it took."""
    took: dict[str, tuple[float, float]] = {}
    for what, command in commands(path, python, others):
        _, cpu_s, peak_mib = measured(command)
        took[what] = cpu_s, peak_mib
        print(f"{KINDS[path.name]}  {what}  {cpu_s:.1f} s  {peak_mib:,.0f} MiB", flush=True)
    rows = []
    commit = evidence.commit()
    for what, (cpu_s, peak_mib) in took.items():
        alike = [WRITTEN] if what in (WRITTEN, IMPORTED) else others
        fastest_s = min((took[one][0] for one in alike if one in took), default=cpu_s)
        row = [KINDS[path.name], what, f"{cpu_s:.1f} s", f"{cpu_s / fastest_s:.1f}"]
        rows.append([*row, f"{peak_mib:,.0f} MiB", commit])
    return rows


def versions(python: str) -> dict[str, str]:
    """Return the versions of those of the three that an interpreter has."""
    found = {}
    for library in ("pandas", "polars", "duckdb"):
        command = [python, "-c", f"import {library}; print({library}.__version__)"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode == 0:
            found[library] = done.stdout.strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--others", default=sys.executable, help="interpreter that has them")
    parser.add_argument("--keep", metavar="NAME", help="Write docs/evidence/NAME.json.")
    parser.add_argument("--file", choices=KINDS, help="Measure this one only.")
    options = parser.parse_args()
    others = versions(options.others)
    used = {"pyarrow": version("pyarrow"), **others}
    table = kept(options.keep) if options.file else []
    for name in [options.file] if options.file else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder) / name, options.rows)
            found = rows_of(path, options.others, list(others))
        table = [row for row in table if row[0] != KINDS[name]] + found
        table.sort(key=lambda row: list(KINDS.values()).index(row[0]))
        evidence.keep(options.keep, {"head": HEAD, "rows": table}, used)


def kept(name: str | None) -> list[list[str]]:
    """Return the rows of an earlier run."""
    path = evidence.FOLDER / f"{name}.json"
    return list(evidence.found(name)["rows"]) if name and path.exists() else []


def write(path: Path, rows: int) -> Path:
    """Write a file of made-up requests, packed if its name says so."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    {"azure.csv": write_azure, "canonical.jsonl": write_canonical}[plain.name](plain, rows)
    if plain != path:
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=6) as file:
            shutil.copyfileobj(source, file, 2**20)
        plain.unlink()
    return path


if __name__ == "__main__":
    main()
