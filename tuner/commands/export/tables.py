"""A run as tables: curve, replays, requests, iterations."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import UNKNOWN
from tuner.profile.schema import ServingProfile
from tuner.replay.records import Replay, e2el_s, ttft_s
from tuner.runs.journal import Journal

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
"""Name of a column → a plain value."""


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


def table_of(rows: Sequence[Row]) -> "pa.Table":
    """Return rows as a table; a row without a column has null there. Raises ValueError for values
    that no column can hold."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def replays(book: Journal) -> "pa.Table":
    """Return a row for each replay. Raises RunError for a damaged replay, ValueError."""
    return table_of([_of_replay(number, *one) for number, one in enumerate(_replays(book))])


def requests(book: Journal) -> "pa.Table":
    """Return a row for each request that was sent; times in seconds. Raises RunError."""
    return _stacked([(one, one.requests) for _, one in _replays(book)], _derived)


def iterations(book: Journal) -> "pa.Table":
    """Return a row for each iteration of the engine; times in seconds. Raises RunError."""
    return _stacked([(one, one.iterations) for _, one in _replays(book)])


def _stacked(
    found: Sequence[tuple[Replay, NDArray[np.void]]],
    derived: Callable[[NDArray[np.void]], dict[str, NDArray[Any]]] = lambda _: {},
) -> "pa.Table":
    """Return the rows of all replays as one table, each with its replay."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    if not found:
        return pa.table({})
    counts = [len(rows) for _, rows in found]
    together = np.concatenate([rows for _, rows in found])
    columns = {name: together[name] for name in together.dtype.names or ()} | derived(together)
    return pa.table(
        {
            "replay": np.repeat(np.arange(len(found)), counts),
            "max_num_seqs": np.repeat([one.max_num_seqs for one, _ in found], counts),
            **{name: _column(values) for name, values in columns.items()},
        }
    )


def _column(values: NDArray[Any]) -> "pa.Array":
    """Return a column with null for what nobody reports."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    if values.dtype.kind == "U":
        return pa.array(values.tolist())
    missing = np.isnan(values) if values.dtype.kind == "f" else values == UNKNOWN
    return pa.array(values.copy(), mask=missing)


def _derived(sent: NDArray[np.void]) -> dict[str, NDArray[Any]]:
    return {
        "ttft_s": ttft_s(sent),
        "e2el_s": e2el_s(sent),
        "lag_s": sent["sent_s"] - sent["planned_s"],
    }


TABLES: Mapping[str, Callable[[Journal], "pa.Table"]] = {
    "replays": replays,
    "requests": requests,
    "iterations": iterations,
}


def _replays(book: Journal) -> list[tuple[Mapping[str, Any], Replay]]:
    return [(event, book.replay(event)) for event in book.of("replay")]


def _flat(section: Mapping[str, Any]) -> Row:
    """Return the numbers of a step under one name each: ``tpot_ms: {p95}`` is ``tpot_p95_ms``.

    >>> _flat({"tpot_ms": {"p95": 31.0}, "binds": {"slots": 0.5}, "intervals": {"x": (1, 2)}})
    {'tpot_p95_ms': 31.0, 'binds_slots': 0.5, 'x_low': 1, 'x_high': 2}
    """
    row: Row = {}
    for name, value in section.items():
        if name == "intervals":
            for what, (low, high) in value.items():
                row |= {f"{what}_low": low, f"{what}_high": high}
        elif name == "changes":
            for what, change in value.items():
                row |= {f"{what}_change_{end}": one for end, one in change.items()}
        elif isinstance(value, Mapping):
            stem, _, unit = name.rpartition("_") if name.endswith("_ms") else (name, "", "")
            row |= {
                f"{stem}_{inner}_{unit}".rstrip("_"): one for inner, one in _flat(value).items()
            }
        else:
            row[name] = value
    return row


def _of_replay(number: int, event: Mapping[str, Any], one: Replay) -> Row:
    scalars = {
        key: value for key, value in event.items() if isinstance(value, str | int | float | None)
    }
    return scalars | {
        "replay": number,
        "max_num_seqs": one.max_num_seqs,
        "window_s": one.window_s,
        "elapsed_s": one.elapsed_s,
        "requests": len(one.requests),
        "ok": int((one.requests["outcome"] == "ok").sum()),
        "kv_blocks": one.kv_blocks,
        "iterations": len(one.iterations),
        "cut": one.cut,
    }
