"""YAML as tuner writes it: by libyaml where that writes what PyYAML does."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.profiles import profile
from tuner.system import yaml_strict
from tuner.system.yaml_strict import dump

PRINTED = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
ODD = st.sampled_from(
    [
        *("", " ", " a", "a ", "a  b", "a\nb", "\n", "- a", "-", "--- a", "...", "a: b", "a:b"),
        *("a:", ": a", "#a", "a #b", "a#b", "~", "null", "on", "1e3", "1.0", "0x1f", "0o7", "="),
        *("<<", "2026-01-01", "1:30", "%a", "@a", "`a`", "{a}", "[a", "a, b", "*a", "&a", "!a"),
        *("'", '"', "it's", '"a"', "\\n", "\x7f", "?", "? a", "a?b", "|", ">"),
        *("é", "\U0001f600", "\t", "\r", "\x85"),
    ]
)  # fmt: skip
TEXTS = PRINTED | ODD
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def slowly(value: object) -> str:
    """Return what PyYAML itself writes."""
    with pytest.MonkeyPatch.context() as here:
        here.setattr(yaml_strict, "_is_simple", lambda _: False)
        return dump(value)


@settings(max_examples=100)
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
@example({"": None, "a": {"": ""}})
@example({"k" * 100: {"k" * 101: ["long", {"k" * 128: 1}]}})
@example({"one": "a" * 5000, "two": "a " * 5000, "three": [[1, 2], [], {}, [{"a": 1}]]})
def test_what_is_written_is_the_same_whoever_writes_it(value: dict[str, Any]) -> None:
    assert dump(value) == slowly(value)


def test_a_profile_is_written_by_libyaml_and_what_it_writes_otherwise_is_not() -> None:
    is_built = hasattr(yaml, "CSafeDumper")
    assert issubclass(yaml_strict._QuickDumper, yaml.SafeDumper) is not is_built
    assert yaml_strict._is_simple(profile().model_dump(mode="json"))
    for text in ("\U0001f600", "\t", "?"):
        assert not yaml_strict._is_simple({"a": [{"b": text}]})
        assert not yaml_strict._is_simple({"a": [{text: "b"}]})
    for key in ("", "k" * 101):
        assert not yaml_strict._is_simple({key: 1})
