"""Traces for tests: small ones by hand, and the slices of public ones where they are at hand."""

import json
from pathlib import Path
from typing import Any

from tests.support.places import ROOT
from tuner.trace.trace import Trace, TraceHeader, TraceRequest

SAMPLES = ROOT / "traces"


HEADER = {"tuner_trace": 1, "time_unit": "ms"}


def beginning(path: Path, requests: int) -> Path:
    """Write a trace of the first so many requests of the translation sample, 3.6 a second."""
    header, *rows = (SAMPLES / "translation.jsonl").read_text(encoding="utf-8").splitlines()
    counts = {"rows_read": requests, "rows_kept": requests}
    return write_lines(path, json.loads(header) | counts, *rows[:requests])


def row(timestamp: object = 0, **fields: object) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": 10, "output_length": 5, **fields}


def write_lines(path: Path, *lines: object) -> Path:
    """Write objects as JSON lines, text and bytes as they are."""
    with path.open("wb") as file:
        for line in lines:
            if isinstance(line, bytes):
                file.write(line)
            elif isinstance(line, str):
                file.write(line.encode())
            else:
                file.write(json.dumps(line).encode())
            file.write(b"\n")
    return path


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def request(
    row: int = 0,
    arrival_s: float = 0.0,
    **fields: Any,  # noqa: ANN401 - any field
) -> TraceRequest:
    return TraceRequest(
        **{"row": row, "arrival_s": arrival_s, "input_length": 10, "output_length": 5, **fields}
    )


def trace_of(*requests: TraceRequest, block_size: int = 16) -> Trace:
    header = TraceHeader(source="test", block_size=block_size)
    return Trace.of(header, requests)


def cut(trace: Trace, *, start_s: float, length_s: float) -> Trace:
    """Return a part of a trace as ``tuner trace cut`` does."""
    return trace.cut(start_s, length_s)
