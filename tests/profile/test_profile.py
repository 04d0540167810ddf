"""A serving profile reads back as it was written, and shows every later edit."""

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import golden
from tests.support.places import ROOT
from tests.support.profiles import any_profile, profile
from tuner.errors import ProfileError
from tuner.profile.profile import ServingProfile, digest_of, dump, load, parse
from tuner.profile.summary import WIDTH

PROFILE = profile()
TEXT = dump(PROFILE)
NUMBERS = [
    (match.start(), match.end())
    for match in re.finditer(r"(?<=[ \[])-?\d+(\.\d+)?(?=[\n,\]}])", TEXT)
    if match.start() > TEXT.index("schema_version")  # not of the comments
]  # fmt: skip


def refused(text: str) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        parse(text, source="p.yaml")
    assert "\n" not in str(caught.value)
    assert "\n" not in caught.value.hint
    return caught.value


@settings(max_examples=30)
@given(any_profile())
def test_what_is_written_reads_back_and_is_written_the_same_again(any_: ServingProfile) -> None:
    text = dump(any_)
    read = parse(text, source="memory")
    assert read == any_
    assert dump(read) == text


def test_the_digest_is_that_of_the_canonical_json() -> None:
    content = yaml.safe_load(TEXT)
    claimed = content.pop("digest")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert claimed == "sha256:" + hashlib.sha256(canonical).hexdigest()


def test_the_answer_stands_on_top_in_at_most_sixteen_comments() -> None:
    top = list(takewhile(lambda line: line.startswith("#"), TEXT.splitlines()))
    assert len(top) <= 16
    assert any("max_num_seqs 16" in line for line in top)
    assert max(map(len, top)) <= len("# ") + WIDTH


@settings(max_examples=50)
@given(st.sampled_from(NUMBERS), st.data())
def test_an_edit_of_one_character_of_a_number_is_refused_or_changes_no_value(
    place: tuple[int, int], data: st.DataObject
) -> None:
    start, end = place
    at = data.draw(st.integers(start, end), label="at")
    cut = data.draw(st.integers(0, min(1, end - at)), label="characters removed")
    put = data.draw(st.sampled_from(["", *"0123456789.-+_eExX:~, '\""]), label="put in")
    edited = TEXT[:at] + put + TEXT[at + cut :]
    number = edited[start : end + len(put) - cut]
    assume(number.strip(" ,") != TEXT[start:end])  # a blank or a comma behind it is no edit of it
    with contextlib.suppress(ProfileError):
        assert parse(edited, source="p.yaml") == PROFILE


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_no_bytes_bring_anything_but_a_profile_error(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        path = Path(file.name)
        path.write_bytes(content)
        with pytest.raises(ProfileError):
            load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  max_num_seqs: 16\n  max_num_b", "  max_num_seqs: true\n  max_num_b",
         "engine.max_num_seqs: is no number that fits decision.max_num_seqs 16"),
        ("max_num_batched_tokens: 8192", "max_num_batched_tokens: 8",
         "engine.max_num_batched_tokens: is no number that fits decision.max_num_seqs 16"),
        ("kv_cache_dtype: auto", "max_num_active_seqs: 8",
         "engine.max_num_active_seqs: is no number that fits decision.max_num_seqs 16"),
        ("kv_cache_dtype: auto", "max_model_len: -1",
         "engine.max_model_len: is no number that fits decision.max_num_seqs 16"),
        ("model: m", "model: ''", "engine.model: must be a name, and no flag"),
        ("created: '2025-06-01T12:00:00Z'", "created: yesterday",
         ("provenance.created: Expected `str` matching regex "
         "'^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}(Z|[+]00:00)$'")),
        ("kv_cache_dtype", "KV-cache",
         "profile: Expected `str` matching regex '^[a-z][a-z0-9_]*$' - at `key` in `$.engine`"),
        ("attainment: 0.995", "attainment: 1.5", "curve.0.attainment: Expected `float` <= 1.0"),
        ("attainment: 0.995", "attainment: .nan", "curve.0.attainment: Expected `float` >= 0.0"),
        ("goodput_rps: 4.0", "goodput_rps: .inf",
         "curve.0.goodput_rps: Expected `float` <= 1e+300"),
        ("preemptions: 0", "preemptions: -1", "curve.0.preemptions: Expected `int` >= 0"),
        ("p50: 38.0", "p50: '38'", "curve.0.ttft_ms.p50: Expected `float`, got `str`"),
        ("cut: false", "cut: 0", "curve.0.cut: Expected `bool`, got `int`"),
        ("verdict: knee", "verdict: good", "decision.verdict: Invalid enum value 'good'"),
        ("verdict: knee", "verdict: knee\n  color: red",
         "decision: Object contains unknown field `color`"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_key(old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new, 1)
    assert str(refused(text)) == f"p.yaml: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: not a serving profile: schema_version is missing"),
        ("max-num-seqs: 16\n", "p.yaml: not a serving profile: schema_version is missing"),
        ("- 1\n", "p.yaml:1: not one mapping of keys to values"),
        ("schema_version: 2\n", "p.yaml: schema_version: Invalid enum value 2"),
        ("schema_version: true\n", "p.yaml: schema_version: Expected `int`, got `bool`"),
        ("schema_version: 1\n", "p.yaml: profile: Object missing required field `engine`"),
        ("a: !!python/object/apply:os.system [ls]\n",
         "p.yaml:1: could not determine a constructor for the tag 'tag:yaml.org,2002:python/…'"),
        ("a: 1\n---\nb: 2\n", "p.yaml:3: not one mapping of keys to values"),
    ],
)  # fmt: skip
def test_what_is_no_profile_is_refused_with_its_line(text: str, message: str) -> None:
    assert str(refused(text)).startswith(message.removesuffix("…'"))


def test_the_file_looks_like_this(update_golden: bool) -> None:
    golden.check("profile.yaml", TEXT, update=update_golden)


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    """Return the profile with another content, and the digest of that: anybody can compute it."""
    content = yaml.safe_load(TEXT)
    change(content)
    content["digest"] = digest_of(content)
    return json.dumps(content)


@pytest.mark.attack
@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_no_name_of_a_profile_is_a_flag(name: str) -> None:
    evil = {name: "--tool-parser-plugin=evil.py"}
    problem = refused(edited(lambda content: content["engine"].update(evil)))
    assert str(problem).endswith(f"engine.{name}: must be a name, and no flag")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        ({"n": 16384, "max_tokens": 1e6}, "n is no parameter of sampling"),
        ({"model": 1.0}, "model is no parameter of sampling"),
    ],
)
def test_how_tokens_are_drawn_says_nothing_else_of_a_request(
    sampling: dict[str, float], why: str
) -> None:
    problem = refused(edited(lambda content: content["provenance"].update(sampling=sampling)))
    assert f"provenance.sampling: {why}" in str(problem)


def test_whole_numbers_are_sent_as_such() -> None:
    drawn = {"temperature": 0.5, "top_k": 20, "presence_penalty": -1.5}
    read = parse(edited(lambda item: item["provenance"].update(sampling=drawn)), source="m")
    assert read.sampling == drawn
    assert isinstance(read.sampling["top_k"], int)


def test_the_schema_beside_the_profiles_is_that_of_the_types(*, update_golden: bool) -> None:
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = {"$schema": dialect, **msgspec.json.schema(ServingProfile)}
    path = ROOT / "profiles" / "profile.schema.json"
    golden.check(str(path), json.dumps(schema, indent=1) + "\n", update=update_golden)
