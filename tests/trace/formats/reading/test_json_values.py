import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.trace.formats.reading.json_values import Value, spans_lines, values


def found(text: bytes, *, longest: int = 10**6, chunk: int = 10**6) -> list[Value]:
    chunks = [text[at : at + chunk] for at in range(0, len(text), chunk)]
    array = text.lstrip().startswith(b"[")
    return list(values(chunks, array=array, longest=longest))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'[{"a": 1},', True),
        (b'\n [\n  {\n "a"', True),
        (b'{\n  "a": 1\n}', True),
        (b'{"a": [\n1]}', True),
        (b'{"a": 1}\n{"a": 2}', False),
        (b'{"a": 1}', False),
        (b'{"a": 1', False),
        (b"[1, 2]", False),
        (b"[2026-11-21 10:00] GET", False),
        (b"a,b,\n1,2", False),
    ],
)
def test_only_objects_that_are_not_one_a_line_span_lines(head: bytes, *, expected: bool) -> None:
    assert spans_lines(head) is expected


def test_elements_are_found_with_the_line_where_they_begin() -> None:
    text = b'\n[ {"a": "],{"},\n\n  {"b":\n [1, 2]},3\n]\n'
    assert found(text) == [
        (2, b'{"a": "],{"}', True),
        (4, b'{"b":\n [1, 2]}', True),
        (5, b"3", True),
    ]


def test_values_one_after_another_need_no_commas() -> None:
    assert found(b'{\n"a": 1}{"b": "\\"}"}\n{}') == [
        (1, b'{\n"a": 1}', True),
        (2, b'{"b": "\\"}"}', True),
        (3, b"{}", True),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'[{"a": 1}, {"a"', [(1, b'{"a": 1}', True), (1, b'{"a"', False)]),
        (b'[{"a": 1},\n', [(1, b'{"a": 1}', True), (2, b"[", False)]),
        (b'[{"a": "x', [(1, b'{"a": "x', False)]),
        (b'[{"a": 1}]] x', [(1, b'{"a": 1}', True), (1, b"]", True), (1, b"x", True)]),
        (b'{\n}, x {"b": 2}', [(1, b"{\n}", True), (2, b"x", True), (2, b'{"b": 2}', True)]),
    ],
)
def test_what_breaks_off_or_does_not_belong_is_told(text: bytes, expected: list[Value]) -> None:
    assert found(text) == expected


def test_a_value_that_is_too_long_is_told_and_not_held() -> None:
    text = b'[{"a": 1}, {"b": "' + b"x" * 100 + b'"},\n{"c": 1}]'
    whole = [(1, b'{"a": 1}', True), (1, None, True), (2, b'{"c": 1}', True)]
    assert found(text, longest=20) == whole
    assert found(text[:60], longest=20)[-1] == (1, None, False)


JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('"\\[]{},:\na')),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.sampled_from('"\\]},')), inner, max_size=3)
    ),
)


@given(
    elements=st.lists(st.dictionaries(st.sampled_from("ab"), JSON, min_size=1), min_size=1),
    indent=st.sampled_from([None, 0, 2]),
    chunk=st.integers(1, 7) | st.integers(8, 200),
    array=st.booleans(),
)
def test_whatever_the_layout_and_wherever_the_chunks_break(
    elements: list[object], indent: int | None, chunk: int, *, array: bool
) -> None:
    if array:
        text = json.dumps(elements, indent=indent).encode()
    else:
        text = "\n".join(json.dumps(one, indent=indent) for one in elements).encode()
    got = found(text, chunk=chunk)
    assert [json.loads(value or b"") for _, value, _ in got] == elements
    numbers = [number for number, _, _ in got]
    lines = text.split(b"\n")
    assert all(re.match(rb'\s*\[?\s*[{"]|.*\{', lines[number - 1]) for number in numbers)
    assert numbers == sorted(numbers)


@given(
    text=st.lists(
        st.sampled_from([*'[]{},:"\\ \na1', '{"a": 1}', '{"b": [1, 2]},', '{"c": "x\\"]"},\n'])
    ).map("".join),
    chunk=st.integers(2, 60),
)
def test_where_the_chunks_break_does_not_matter(text: str, chunk: int) -> None:
    content = b'[{"a": 0},' + text.encode()
    assert found(content, chunk=chunk) == found(content, chunk=1)
