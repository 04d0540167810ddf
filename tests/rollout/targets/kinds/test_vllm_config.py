"""A profile's arguments in a `vllm serve --config` YAML: they are all that changes."""

import re

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError
from tuner.rollout.targets.kinds import vllm_config
from tuner.rollout.targets.seam import Asked
from tuner.rollout.targets.server import Server
from tuner.rollout.targets.yaml.file import parse

LIMITS: dict[str, ArgumentValue] = {"max_num_seqs": 16, "max_num_batched_tokens": 8192}


def server(text: str) -> Server:
    """Return the server of a file that is vLLM's, whatever is in it."""
    file = parse(text, source="serve.yaml")
    root = vllm_config.root_of(file)
    if root is None:
        return vllm_config.opened(text, Asked("serve.yaml"))
    return vllm_config.ConfigServer(Asked("serve.yaml"), text, file, root, "a test")


def write(text: str, **arguments: ArgumentValue) -> str:
    result = server(text).written(arguments)
    assert server(result).written(arguments) == result
    return result


def refused(text: str, **arguments: ArgumentValue) -> TargetError:
    with pytest.raises(TargetError) as caught:
        server(text).written(arguments)
    assert "\n" not in str(caught.value)
    assert "\n" not in caught.value.hint
    return caught.value


def test_a_new_file_has_one_line_an_argument() -> None:
    assert write("", model="m", max_num_seqs=16, gpu_memory_utilization=0.3) == (
        "# Engine arguments for `vllm serve --config`, set by `tuner apply`.\n"
        "model: m\n"
        "max-num-seqs: 16\n"
        "gpu-memory-utilization: 0.3\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("max-num-seqs: 8\n", "max-num-seqs: 16\n"),
        ("max_num_seqs: 8\n", "max_num_seqs: 16\n"),
        ("max-num-seqs:   8   # why\n", "max-num-seqs:   16   # why\n"),
        ("max-num-seqs: '16'\n", "max-num-seqs: '16'\n"),
        ("max-num-seqs: 0x10\n", "max-num-seqs: 0x10\n"),
        ("max-num-seqs:\n", "max-num-seqs: 16\n"),
        ("max-num-seqs:   # why\n", "max-num-seqs: 16   # why\n"),
        ("max-num-seqs: >-\n  8\n\n# why\n", "max-num-seqs: 16\n\n# why\n"),
        ("a: 1\r\nmax-num-seqs: 8\r\nb: 2\r\n", "a: 1\r\nmax-num-seqs: 16\r\nb: 2\r\n"),
        ("a: 1\r\n# end\r\n", "a: 1\r\n# end\r\nmax-num-seqs: 16\r\n"),
        ("{a: 1}\n", "{a: 1, max-num-seqs: 16}\n"),
        ("a: 1\n...\n", "a: 1\nmax-num-seqs: 16\n...\n"),
        ("a: 1", "a: 1\nmax-num-seqs: 16"),
        ("# only a comment", "# only a comment\nmax-num-seqs: 16"),
        ("  a: 1\n  b: 2\n", "  a: 1\n  b: 2\n  max-num-seqs: 16\n"),
        ("{a: 1, max-num-seqs: 8}\n", "{a: 1, max-num-seqs: 16}\n"),
        ('"max-num-seqs": 8\n', '"max-num-seqs": 16\n'),
        ("---\nmax-num-seqs: 8\n...\n", "---\nmax-num-seqs: 16\n...\n"),
        ("\ufeffmax-num-seqs: 8\n", "\ufeffmax-num-seqs: 16\n"),
        ("a: 2025-01-01\n", "a: 2025-01-01\nmax-num-seqs: 16\n"),
        ("a: &x 1\nb: *x\n", "a: &x 1\nb: *x\nmax-num-seqs: 16\n"),
    ],
)
def test_only_the_argument_changes(before: str, after: str) -> None:
    assert write(before, max_num_seqs=16) == after


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("", True, "enforce-eager: true\n"),
        ("", False, "no-enforce-eager: true\n"),
        ("enforce-eager: true  # why\n", False, "no-enforce-eager: true  # why\n"),
        ("enforce_eager: true\n", False, "no_enforce_eager: true\n"),
        ("enforce-eager: false\n", False, "no-enforce-eager: true\n"),
        ("no-enforce-eager: true\n", True, "enforce-eager: true\n"),
        ("no-enforce-eager: false\n", True, "enforce-eager: true\n"),
        ("no-enforce-eager: true\n", False, "no-enforce-eager: true\n"),
        ("enforce-eager: true\na: 1\n", None, "a: 1\n"),
        ("enforce-eager: 'true'\n", True, "enforce-eager: true\n"),
    ],
)
def test_a_switch_is_written_so_that_vllm_serve_does_not_drop_it(
    before: str, value: ArgumentValue, after: str
) -> None:
    assert write(before or "# \n", enforce_eager=value).removeprefix("# \n") == after


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("disable-prefix-caching: true\n", False, "disable-prefix-caching: true\n"),
        ("disable-prefix-caching: false\n", False, "disable-prefix-caching: true\n"),
        ("disable_prefix_caching: true\n", True, "enable_prefix_caching: true\n"),
        ("disable-prefix-caching: true\na: 1\n", None, "a: 1\n"),
    ],
)
def test_the_opposite_of_a_switch_is_that_switch(
    before: str, value: ArgumentValue, after: str
) -> None:
    assert write(before, enable_prefix_caching=value) == after


def test_a_switch_without_a_negative_is_turned_off_by_leaving_it_out() -> None:
    assert write("disable-log-stats: true\na: 1\n", disable_log_stats=False) == "a: 1\n"
    assert write("disable-log-stats: false\n", disable_log_stats=False) == (
        "disable-log-stats: false\n"
    )


def test_what_vllm_shall_decide_is_not_stated() -> None:
    assert write("a: 1\nmax-model-len: 4096  # b\nc: 2\n", max_model_len=None) == "a: 1\nc: 2\n"


def test_a_second_name_of_an_argument_is_the_argument() -> None:
    assert write("device-memory-utilization: 0.9\n", gpu_memory_utilization=0.3) == (
        "device-memory-utilization: 0.3\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("compilation-config:  # a\n  # b\n  mode: 0\n# c\nd: 1\n",
         "compilation-config:  # a\n  # b\n  {mode: 3}\n# c\nd: 1\n"),
        ("compilation-config: {mode: 0}  # a\n", "compilation-config: {mode: 3}  # a\n"),
        ("compilation-config:\n  mode: 3\n", "compilation-config:\n  mode: 3\n"),
        ("compilation-config:\n- a\nd: 1\n", "compilation-config:\n  {mode: 3}\nd: 1\n"),
        ("compilation-config: x\n", "compilation-config: {mode: 3}\n"),
    ],
)  # fmt: skip
def test_a_mapping_is_replaced_whole(before: str, after: str) -> None:
    assert write(before, compilation_config={"mode": 3}) == after


def test_the_quotes_around_a_text_are_kept() -> None:
    assert write("tokenizer: 'a'\n", tokenizer="b") == "tokenizer: 'b'\n"
    assert write('tokenizer: "a"\n', tokenizer="b") == 'tokenizer: "b"\n'


def test_a_text_that_yaml_would_take_for_something_else_is_quoted() -> None:
    texts = ["on", "1", "1.5", "null", "2025-01-01", "a: b", "a #b", "12:30", "a, b", "*x", "\n"]
    for text in texts:
        assert yaml.safe_load(write("", model=text)) == {"model": text}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("max-num-seqs: 8\nmax_num_seqs: 9\n", {"max_num_seqs": 16},
         "2: max_num_seqs states max_num_seqs a second time, after line 1"),
        ("enforce-eager: true\nno-enforce-eager: true\n", {"enforce_eager": True},
         "2: no-enforce-eager states enforce_eager a second time, after line 1"),
        ("max-num-seqs: 8\nmax-num-seqs: 9\n", {"max_num_seqs": 16},
         "2: 'max-num-seqs' is there twice, first in line 1"),
        ("compilation-config.mode: 3\n", {"compilation_config": {}},
         "1: compilation-config.mode states a part of compilation_config"),
        ("max-num-seqs: &x 8\nmax-num-active-seqs: *x\n", {"max_num_seqs": 16},
         "1: max-num-seqs has an anchor, an alias or a tag"),
        ("a: &x 8\nmax-num-seqs: *x\n", {"max_num_seqs": 16},
         "2: max-num-seqs has an anchor, an alias or a tag"),
        ("max-num-seqs: !!int '8'\n", {"max_num_seqs": 16},
         "1: max-num-seqs has an anchor, an alias or a tag"),
        ("a: &x {mode: 0}\ncompilation-config: {a: *x}\n", {"compilation_config": {"mode": 3}},
         "2: compilation-config has an anchor, an alias or a tag"),
        ("a: 2025-13-45\n", {"max_num_seqs": 16}, "1: month must be in 1..12"),
        ("a: !run ls\n", {"max_num_seqs": 16},
         "1: could not determine a constructor for the tag '!run'"),
        ("<<: {max-num-seqs: 8}\n", {"max_num_seqs": 16}, "1: key '<<' is not text"),
        ("on: 1\n", {"max_num_seqs": 16}, "1: key 'on' is not text"),
        ("- 1\n", {"max_num_seqs": 16}, "1: not a mapping of keys to values"),
        ("a: 1\n---\nb: 1\n", {"max_num_seqs": 16}, "3: is another document"),
        ("a:\n\t- 1\n", {"max_num_seqs": 16},
         "2: found character '\\t' that cannot start any token"),
        ("a: " + "[" * 64, {"max_num_seqs": 16}, "1: nested more than 32 levels deep"),
        ("{a: 1, max-model-len: 8}\n", {"max_model_len": None},
         "1: max-model-len shares its line with something else"),
    ],
)  # fmt: skip
def test_what_cannot_be_edited_safely_is_named(
    text: str, arguments: dict[str, ArgumentValue], message: str
) -> None:
    assert str(refused(text, **arguments)) == f"serve.yaml:{message}"


def test_an_anchor_inside_what_is_replaced_and_used_elsewhere_is_noticed() -> None:
    text = "compilation-config:\n  mode: &x 0\nseed: *x\n"
    assert str(refused(text, compilation_config={"mode": 3})) == (
        "serve.yaml:1: compilation-config has an anchor, an alias or a tag"
    )


def test_merged_mappings_cannot_fill_the_memory() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    assert "more than 50000 keys and values, those behind aliases counted" in str(
        refused("\n".join(lines), **LIMITS)
    )


def test_a_short_text_with_few_aliases_cannot_fill_the_memory_either() -> None:
    """Sixteen times twice what stands before: 65,536 times a thousand keys."""
    lines = [f"a0: &a0 {{{', '.join(f'k{n}: 1' for n in range(1000))}}}"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 17)]
    assert "more than 50000 keys and values" in str(refused("\n".join(lines), **LIMITS))


def test_aliases_cannot_nest_deeper_than_what_is_written_out() -> None:
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 50))]
    assert "nested more than 32 levels deep" in str(refused("\n".join(lines), **LIMITS))


def test_many_aliases_of_a_short_value_are_taken() -> None:
    text = "a: &a x\n" + "".join(f"k{n}: *a\n" for n in range(100))
    assert write(text, max_num_seqs=16) == text + "max-num-seqs: 16\n"


def test_a_value_that_holds_itself_is_refused() -> None:
    assert "an alias within what it stands for" in str(refused("a: &a [*a]\n", **LIMITS))


@pytest.mark.parametrize("value", [[], [None], [True], [[1]], [{"a": 1}]])
def test_a_list_that_vllm_would_garble_is_refused(value: ArgumentValue) -> None:
    assert str(refused("", cudagraph_capture_sizes=value)) == (
        f"serve.yaml: cudagraph_capture_sizes: a --config file cannot carry {value!r}"
    )


@pytest.mark.parametrize("value", ["--trust-remote-code", "-x", ["a", "--b"]])
def test_a_value_cannot_smuggle_in_a_flag(value: ArgumentValue) -> None:
    assert "for a flag" in str(refused("", model=value))


def test_a_serving_profile_is_not_taken_for_a_config() -> None:
    assert "is a serving profile" in str(refused("schema_version: 1\ndigest: x\n", **LIMITS))


def test_reading_gives_vllms_names_and_drops_what_vllm_drops() -> None:
    text = "max-num-seqs: 8\nno-enforce-eager: true\nasync-scheduling: false\nseed: null\nx: []\n"
    stated = server(text).stated
    assert {name: (one.value, one.line) for name, one in stated.items()} == {
        "max_num_seqs": (8, 1),
        "enforce_eager": (False, 2),
    }


# Any file: keys that no profile touches, in any layout, around some that it does.

_WORD = st.sampled_from(["a", "b c", "x: y", "# no comment", "'", '"', "ü", "-", "on", "1e3", ""])
_SCALAR = _WORD | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORD, inner, max_size=2),
    max_leaves=4,
)
_COMMENT = st.sampled_from(["", "  # why: because", "\n# a line: of its own", "\n", "\n\n  # in"])
_LAYOUT = st.sampled_from([None, False, True])
_NAMES = [f"key-{letter}" for letter in "abcd"]
_TOUCHED = ["max-num-seqs", "max_num_batched_tokens", "no-enforce-eager", "compilation-config"]


@st.composite
def configs(draw: st.DrawFn) -> str:
    parts = []
    for name in draw(st.lists(st.sampled_from(_NAMES + _TOUCHED), unique=True, max_size=6)):
        layout = draw(_LAYOUT)
        quotes = draw(st.sampled_from([None, "'", '"']))
        entry = yaml.safe_dump(
            {name: draw(_VALUE)}, default_flow_style=layout, default_style=quotes, width=20
        )
        if entry.startswith("{"):
            entry = entry.removeprefix("{").removesuffix("}\n") + "\n"
        comment = draw(_COMMENT)
        lines = entry.removesuffix("\n").split("\n")
        simple = len(lines) == 1 and "|" not in entry and ">" not in entry
        parts.append(entry.removesuffix("\n") + (comment if simple else "") + "\n")
    return draw(st.sampled_from(["\n", "\r\n"])).join("".join(parts).split("\n"))


def untouched(text: str) -> list[str]:
    """Return the lines, blank ones aside, that belong to no touched key."""
    kept, inside = [], False
    for line in re.split(r"(?<=\n)", text):
        if re.match(r"[\"'a-z#]", line):
            inside = any(name in line.replace("_", "-") for name in TOUCHED_FLAGS)
        if not inside and line.strip():
            kept.append(line)
    return kept


TOUCHED_FLAGS = ["max-num-seqs", "max-num-batched-tokens", "enforce-eager", "compilation-config"]
ARGUMENTS: dict[str, ArgumentValue] = {
    **LIMITS,
    "enforce_eager": True,
    "compilation_config": {"mode": 3},
}


@settings(deadline=None, max_examples=50)
@given(configs())
def test_any_file_keeps_what_the_profile_does_not_touch(text: str) -> None:
    assume("!" not in text)  # PyYAML's dumper tags numbers in quotes
    parsed = yaml.safe_load(text) or {}
    result = server(text).written(ARGUMENTS)
    assert server(result).written(ARGUMENTS) == result
    found = server(result).stated
    assert {name: found[name].value for name in ARGUMENTS} == ARGUMENTS
    if text:
        assert untouched(result) == untouched(text if text.endswith("\n") else text + "\n")
    after = yaml.safe_load(result)
    for name, value in parsed.items():
        if name in _NAMES:
            assert repr(after[name]) == repr(value)


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet="abm-: \n\r\t#'\"[]{},&*!|>?%@`_0123456789.", max_size=60))
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        result = server(text).written(LIMITS)
    except TargetError:
        return
    assert {name: one.value for name, one in server(result).stated.items()}.items() >= (
        LIMITS.items()
    )
