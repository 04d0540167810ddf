"""Batches written as lines of the canonical format: a tenth of a microsecond a row."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tuner.trace.formats.columnar.batch import ABSENT, DEFAULTS, KEYS, Batch, Floats, Ints

_FRACTIONS = pa.array([f".{part:03d}".rstrip("0").rstrip(".") for part in range(1000)])


def lines_of(batch: Batch) -> bytes:
    """Return the rows as JSON, one a line, without what is absent or as usual."""
    parts: list[Any] = ['{"timestamp":', *_milliseconds(batch.times["timestamp"])]
    parts += [part for key in KEYS[1:] if (part := _json(batch, key)) is not None]
    joined = pc.binary_join_element_wise(*parts, "}\n", "")
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][: len(batch) + 1]
    text: bytes = joined.buffers()[2][int(offsets[0]) : int(offsets[-1])].to_pybytes()
    return text


def _json(batch: Batch, key: str) -> Any:  # noqa: ANN401 - an array of Arrow's
    """Return ``,"key":value`` for each row, nothing where it has none; None for no rows."""
    values: tuple[Any, ...]
    if key in batch.times:
        absent = np.isnan(batch.times[key])
        values = _milliseconds(np.where(absent, 0.0, batch.times[key]))
    elif key in batch.counts:
        counts = batch.counts[key]
        absent = (counts == ABSENT) | (counts == DEFAULTS.get(key, ABSENT))
        values = (_text_of(counts, is_flag=key == "stream"),)
    elif key in batch.names:
        codes, names = batch.names[key]
        default = names.index(DEFAULTS[key]) if DEFAULTS.get(key) in names else -1
        absent = (codes < 0) | (codes == default)
        quoted = pa.array([msgspec.json.encode(name).decode() for name in names] or [""])
        values = (quoted.take(pa.array(np.maximum(codes, 0))),)
    elif key in batch.lists:
        offsets, held = batch.lists[key]
        absent = np.diff(offsets) == 0
        digits = pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), pc.cast(pa.array(held), pa.string())
        )
        values = ("[", pc.binary_join(digits, ","), "]")
    else:
        return None
    if absent.all():
        return None
    text = pc.binary_join_element_wise(f',"{key}":', *values, "")
    return pc.if_else(pa.array(absent), "", text) if absent.any() else text


def _milliseconds(times_ms: Floats) -> tuple[Any, Any]:
    """Return whole ms and their fractions as text: to the microsecond, without ``.0``."""
    microseconds = np.rint(times_ms * 1000).astype(np.int64)
    whole = pc.cast(pa.array(microseconds // 1000), pa.string())
    return whole, _FRACTIONS.take(pa.array(microseconds % 1000))


def _text_of(counts: Ints, *, is_flag: bool) -> Any:  # noqa: ANN401 - an array of Arrow's
    if is_flag:
        return pa.array(["false", "true"]).take(pa.array(np.maximum(counts, 0)))
    return pc.cast(pa.array(counts), pa.string())
