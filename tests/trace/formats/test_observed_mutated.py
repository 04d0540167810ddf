"""Whatever stands in a log: no traceback, counts that reconcile, rows that can be written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.spans import export, request, span
from tests.trace.formats import (
    test_envoy as test_formats_envoy,
)
from tests.trace.formats import (
    test_langfuse as test_formats_langfuse,
)
from tests.trace.formats import (
    test_litellm as test_formats_litellm,
)
from tests.trace.formats import test_nginx as nginx
from tuner.errors import TraceError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row

SAMPLES: dict[str, list[dict[str, Any]]] = {
    "vllm-otlp": [export(span(attributes=request()), span(length_s=2, attributes=request()))],
    "otel-genai": [
        export(span("chat", attributes={"gen_ai.operation.name": "chat"}, kind=3, spanId="c")),
        export(span(attributes=request(), parentSpanId="c")),
    ],
    "litellm": [test_formats_litellm.spend(), test_formats_litellm.payload(status="failure")],
    "langfuse": [test_formats_langfuse.observation(), test_formats_langfuse.exported()],
    "envoy": [test_formats_envoy.entry()],
    "nginx": [nginx.entry()],
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["-", "None", "1e400", "9" * 400, "2025-01-24", "{}", '{"n": 0}']),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["key", "value", "intValue", "input", "n"]), inner),
    max_leaves=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated") / "t"


def check(path: Path, name: str, content: bytes) -> None:
    path.write_bytes(content)
    try:
        source, tally = open_trace(path, format_name=name, allow_text=True)
    except TraceError:
        return
    rows: list[Row] = []
    try:
        rows.extend(source.rows)
    except TraceError:
        pass
    else:
        assert tally.rows_kept == len(rows)
        assert tally.rows_read == tally.rows_kept + sum(tally.dropped.values())
    for row in rows:
        assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row


def places(found: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - any JSON
    """Yield the container and the key of each value in a JSON document, however deep it is."""
    members = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in members:
        yield found, key
        if isinstance(value, dict | list):
            yield from places(value)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_may_stand_anywhere(path: Path, name: str, data: st.DataObject) -> None:
    lines = json.loads(json.dumps(SAMPLES[name]))
    everywhere = list(places(lines))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = everywhere[data.draw(st.integers(0, len(everywhere) - 1))]
        container[key] = data.draw(VALUES)
    check(path, name, "\n".join(map(json.dumps, lines)).encode())


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=25)
@given(at=st.floats(0, 1), cut=st.integers(0, 40), put=st.binary(max_size=12), indent=st.booleans())
def test_any_bytes_may_be_lost_or_added(  # noqa: PLR0913 - what and where
    path: Path, name: str, *, at: float, cut: int, put: bytes, indent: bool
) -> None:
    text = (
        json.dumps(SAMPLES[name], indent=1) if indent else "\n".join(map(json.dumps, SAMPLES[name]))
    )
    content = text.encode()
    start = int(at * len(content))
    check(path, name, content[:start] + put + content[start + cut :])


@settings(max_examples=25)
@given(at=st.floats(0, 1), cut=st.integers(0, 40), put=st.binary(max_size=12))
def test_a_table_of_litellm_may_be_broken_anywhere(
    path: Path, *, at: float, cut: int, put: bytes
) -> None:
    rows = [test_formats_litellm.spend(), test_formats_litellm.spend(metadata='{"a": "b,\n"}')]
    content = test_formats_litellm.write_csv(path, *rows).read_bytes()
    start = int(at * len(content))
    check(path, "litellm", content[:start] + put + content[start + cut :])
