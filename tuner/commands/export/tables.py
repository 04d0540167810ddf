"""A run as tables: a list of rows for each, plain values only, ready for a DataFrame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from tuner.profile.schema import ServingProfile
from tuner.replay.records import Replay, RequestRecord
from tuner.runs.journal import Journal

Cell = str | int | float | bool | None
Row = dict[str, Any]
"""Name of a column → a Cell."""

_OF_REQUEST = [one.name for one in fields(RequestRecord) if one.name != "itl_s"]


def tables_of(book: Journal, profile: ServingProfile | None) -> dict[str, list[Row]]:
    """Return every table of a run by name; none without rows. Raises RunError for a replay whose
    data is damaged."""
    replays = [(event, book.replay(event)) for event in book.of("replay")]
    found = {
        "curve": [] if profile is None else curve_rows(profile),
        "replays": [_of_replay(n, event, one) for n, (event, one) in enumerate(replays)],
        "requests": [row for n, (_, one) in enumerate(replays) for row in _of_requests(n, one)],
        "iterations": [row for n, (_, one) in enumerate(replays) for row in _of_iterations(n, one)],
    }
    return {name: rows for name, rows in found.items() if rows}


def curve_rows(profile: ServingProfile) -> list[Row]:
    """Return the curve, a row a step: times in ms, shares from 0 to 1, ``_low`` and ``_high`` the
    ends of 95 % intervals, ``measured_`` what the replays of windows gave."""
    chosen = profile.decision.max_num_seqs
    return [
        {
            "max_num_seqs": step.max_num_seqs,
            "chosen": step.max_num_seqs == chosen,
            **_flat(step.model_dump()),
        }
        for step in profile.curve
    ]


def _flat(section: Mapping[str, Any]) -> Row:
    """Return the numbers of a step under one name each: ``tpot_ms: {p95}`` is ``tpot_p95_ms``.

    >>> _flat({"tpot_ms": {"p95": 31.0}, "binds": {"slots": 0.5}, "intervals": {"x": (1, 2)}})
    {'tpot_p95_ms': 31.0, 'binds_slots': 0.5, 'x_low': 1, 'x_high': 2}
    """
    found: Row = {}
    for name, value in section.items():
        if name == "intervals":
            for what, (low, high) in value.items():
                found |= {f"{what}_low": low, f"{what}_high": high}
        elif name == "changes":
            for what, change in value.items():
                found |= {f"{what}_change_{end}": one for end, one in change.items()}
        elif isinstance(value, Mapping):
            stem, _, unit = name.rpartition("_") if name.endswith("_ms") else (name, "", "")
            found |= {
                f"{stem}_{inner}_{unit}".rstrip("_"): one for inner, one in _flat(value).items()
            }
        else:
            found[name] = value
    return found


def _of_replay(number: int, event: Mapping[str, Any], one: Replay) -> Row:
    said = {key: value for key, value in event.items() if isinstance(value, Cell)}
    outcomes = [record.outcome for record in one.records]
    return said | {
        "replay": number,
        "max_num_seqs": one.max_num_seqs,
        "window_s": one.window_s,
        "elapsed_s": one.elapsed_s,
        "requests": len(outcomes),
        "ok": outcomes.count("ok"),
        "kv_blocks": one.kv_blocks,
        "iterations": len(one.iterations),
        "cut": one.cut,
    }


def _of_requests(number: int, one: Replay) -> Iterator[Row]:
    for record in one.records:
        row: Row = {name: getattr(record, name) for name in _OF_REQUEST}
        times = {"ttft_s": record.ttft_s, "e2el_s": record.e2el_s, "lag_s": record.lag_s}
        yield {"replay": number, "max_num_seqs": one.max_num_seqs, **row, **times}


def _of_iterations(number: int, one: Replay) -> Iterator[Row]:
    names: Sequence[str] = one.iterations.dtype.names or ()
    columns = [one.iterations[name].tolist() for name in names]
    for values in zip(*columns, strict=True):
        yield {
            "replay": number,
            "max_num_seqs": one.max_num_seqs,
            **dict(zip(names, values, strict=True)),
        }
