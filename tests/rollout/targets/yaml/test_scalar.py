"""A YAML scalar is seen character by character, whatever its style, and changed in its middle."""

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tuner.errors import TargetError
from tuner.rollout.targets.yaml.file import YamlFile, parse
from tuner.rollout.targets.yaml.nodes import get

_TEXT = st.text(alphabet="ab :#'\"\\%\n\té\x07\u2028😀", max_size=25)


def scalar(text: str) -> tuple[YamlFile, yaml.ScalarNode]:
    file = parse(text, source="f")
    node = get(file.roots[0], "k")
    assert isinstance(node, yaml.ScalarNode)
    return file, node


@settings(max_examples=100)
@example(text="\n:", style="|", width=10, ends="\n", unicode=False)
@given(
    text=_TEXT,
    style=st.sampled_from([None, "'", '"', "|", ">"]),
    width=st.sampled_from([10, 999]),
    ends=st.sampled_from(["\n", "\r\n"]),
    unicode=st.booleans(),
)
def test_every_character_is_found_where_it_stands(
    text: str, style: str | None, width: int, ends: str, unicode: bool
) -> None:
    written = yaml.dump({"k": text}, default_style=style, width=width, allow_unicode=unicode)
    assume("!!" not in written)
    file, node = scalar(ends.join(written.split("\n")))
    if not node.value.strip():  # nothing that could be a command
        return
    try:
        seen = file.view(node)
    except TargetError:  # YAML 1.1 takes U+2028 for a line end; who writes one is left alone
        assert "\u2028" in text
        return
    assert seen.text == node.value
    for index in range(len(seen.text)):
        start, end = seen.place(index, index + 1)
        assert start < end
    # A word put in the middle is there afterwards, and nothing else has changed.
    at = len(seen.text) // 2
    place, _ = seen.place(at, at)
    file.edits.replace(place, place, seen.encode("X"))
    try:
        _, after = scalar(file.edits.result())
    except TargetError:  # in a plain text or at a fold an X can mean something else; it is noticed
        return
    assert after.value.replace("X", "", 1).split() == node.value.split() or style in (None, ">")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"a\\x41\\u0042\\U00000043 \\\n  b"', '"a\\x41\\u0042\\U00000043 \\\n  bX"'),
        ("'it''s\n\n  b'", "'it''s\n\n  bX'"),
        ("a\n  b", "a\n  bX"),
        ("|\n\n  a\n\n  b\n", "|\n\n  a\n\n  bX\n"),
        ("|2\n    a\n  b\n", "|2\n    a\n  bX\n"),
        (">-\n  a\n  b\n\n  c\n", ">-\n  a\n  b\n\n  cX\n"),
        (">\n  a\n    more\n  b\n", ">\n  a\n    more\n  bX\n"),
    ],
)
def test_a_text_is_lengthened_at_its_end(before: str, after: str) -> None:
    file, node = scalar(f"k: {before}\n")
    seen = file.view(node)
    _, place = seen.place(0, len(seen.text.rstrip("\n")))
    file.edits.replace(place, place, seen.encode("X"))
    assert file.edits.result() == f"k: {after}\n"


def test_what_a_style_cannot_hold_is_escaped() -> None:
    for before, part, after in [
        ("'a'", "it's", "'it''sa'"),
        ('"a"', 'q" \\ \n \x07 é 😀 \u2028', '"q\\" \\\\ \\x0a \\x07 é 😀 \\u2028a"'),
        ("|\n  a\n", "b\nc\n", "|\n  b\n  c\n  a\n"),
    ]:
        file, node = scalar(f"k: {before}\n")
        seen = file.view(node)
        place, _ = seen.place(0, 0)
        file.edits.replace(place, place, seen.encode(part))
        assert file.edits.result() == f"k: {after}\n"
        assert scalar(file.edits.result())[1].value == part + node.value
