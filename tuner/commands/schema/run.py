"""Runs ``tuner schema``: prints JSON schemas of the types that read and write these files."""

import json
import sys
from typing import Any

import msgspec
from pydantic import TypeAdapter

from tuner.commands.schema.options import SchemaOptions
from tuner.commands.sweep.results import KindsResult, SeveralResult
from tuner.profile.schema import ServingProfile
from tuner.runs.result import SweepResult
from tuner.trace.formats.reading.header import VERSION, TraceHeader
from tuner.trace.formats.reading.record import SERVED, Row

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def run(options: SchemaOptions) -> None:
    """Print one schema."""
    made = {"profile": of_profile, "trace": of_trace, "sweep-json": of_sweep}[options.of]()
    sys.stdout.write(json.dumps({"$schema": DIALECT, **made}, indent=1, ensure_ascii=False) + "\n")


def of_profile() -> Schema:
    """Return the schema of a serving profile."""
    return {"title": "tuner: a serving profile", **_untitled(ServingProfile.model_json_schema())}


def of_sweep() -> Schema:
    """Return the schema of what a sweep prints: of one trace, of several, of kinds of nodes."""
    printed: TypeAdapter[Any] = TypeAdapter(SweepResult | SeveralResult | KindsResult)
    return {"title": "tuner sweep --json", **_untitled(printed.json_schema())}


def of_trace() -> Schema:
    """Return the schema of one line of a trace in the canonical form: its header, or a request.

    Null is absent in a request, and keys that nobody knows are left out.
    """
    (header, row), parts = msgspec.json.schema_components(
        [TraceHeader, Row], ref_template="#/$defs/{name}"
    )
    of_header, of_row = parts["TraceHeader"], parts["Row"]
    of_header["properties"] |= {"tuner_trace": {"const": VERSION}, "time_unit": {"const": "ms"}}
    of_header["required"] = ["tuner_trace"]
    for name, one in of_row["properties"].items():
        if name != "timestamp":
            of_row["properties"][name] = {"anyOf": [one, {"type": "null"}]}
    of_row["allOf"] = _served()
    is_header = {"type": "object", "required": ["tuner_trace"]}
    return {
        "title": "tuner: one line of a trace",
        "if": is_header,
        "then": header,
        "else": row,
        "$defs": parts,
    }


def _served() -> list[Schema]:
    """Return what is asked of requests that were served: they have tokens."""

    def at_least(**counts: int) -> Schema:
        return {
            "required": list(counts),
            "properties": {
                name: {"type": "integer", "minimum": least} for name, least in counts.items()
            },
        }

    def status(*known: str) -> Schema:
        return {"properties": {"status": {"enum": [*known, None]}}}

    aborted = [one for one in SERVED if one != "ok"]
    return [
        {"if": status("ok"), "then": at_least(input_length=1, output_length=1)},
        {
            "if": {**status(*aborted), "required": ["status"]},
            "then": at_least(input_length=1, output_length=0),
        },
    ]


def _untitled(schema: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Return a schema without the titles that repeat a name."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _untitled(one) for name, one in value.items()}
        if key in {"properties", "$defs"}
        else _untitled(value)
        for key, value in schema.items()
        if key != "title"
    }
