"""YAML as tuner writes it is read back as it was, by PyYAML too."""

import math

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tuner.errors import ProfileError
from tuner.system.yaml_strict import compose, construct, dump

ODD = st.sampled_from(
    [
        *("", " ", " a", "a ", "a  b", "a\nb", "\n", "- a", "-", "--- a", "...", "a: b", "a:b"),
        *("a:", ": a", "#a", "a #b", "a#b", "~", "null", "on", "1e3", "1.0", "0x1f", "0o7", "="),
        *("<<", "2026-01-01", "1:30", "%a", "@a", "`a`", "{a}", "[a", "a, b", "*a", "&a", "!a"),
        *("'", '"', "it's", '"a"', "\\n", "\x7f", "?", "? a", "a?b", "|", ">"),
        *("\u00e9", "\U0001f600", "\t", "\r", "\x85", "a" * 200, "a " * 200),
    ]
)  # fmt: skip
TEXTS = ODD | st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def read(text: str) -> object:
    node = compose(text, source="f", error=ProfileError)
    return None if node is None else construct(node, source="f", error=ProfileError)


@settings(max_examples=100)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
@example({"": None, "a": {"": ""}})
@example({"k" * 128: {"k" * 129: [math.inf, [1, 2], [], {}]}})
def test_what_is_written_is_read_back_by_both_readers(value: dict[str, object]) -> None:
    assert yaml.safe_load(dump(value)) == value
    assert yaml.safe_load(f"a: {dump(value, is_flow=True)}") == {"a": value}
    assert read(dump(value)) == value


@pytest.mark.attack
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\na: 2\n", 2),
        ("a: " + "[" * 2000, 1),
        ("a: &a [*a]\n", 1),
        ("b: 1\na: \x07\n", 2),
        ("? [1, 2]\n: 3\n", 1),
        ("a: !!python/object:os.system x\n", 1),
        ("a: " + "9" * 5000, 1),
        ("b: 1\na: " + "1:" * 3000 + "1\n", 2),
        (
            "a: &a [x, x]\n"
            + "".join(f"b{n}: &b{n} [{', '.join(['*a'] * 99)}]\n" for n in range(400)),
            169,
        ),
    ],
)
def test_what_is_odd_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ProfileError) as problem:
        read(text)
    assert str(problem.value).startswith(f"f:{line}: ")
