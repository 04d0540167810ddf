"""`tuner schema`: what it accepts, the reader accepts, and what it refuses, the reader refuses."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.profiles import any_profile, profile, step
from tests.support.traces import SAMPLES
from tuner.commands.schema.run import of_profile, of_trace
from tuner.errors import ProfileError, TraceError
from tuner.profile.profile import _digest, dump, parse
from tuner.profile.schema import ServingProfile
from tuner.trace.trace import load

OF_PROFILE, OF_TRACE = Draft202012Validator(of_profile()), Draft202012Validator(of_trace())
Path_ = tuple[str | int, ...]


@pytest.mark.parametrize("name", ["profile", "trace", "sweep-json"])
def test_a_schema_is_one(name: str, tmp_path: Path) -> None:
    done = tuner(tmp_path, "schema", name)
    assert (done.returncode, done.stderr) == (0, "")
    Draft202012Validator.check_schema(json.loads(done.stdout))


@settings(max_examples=30)
@given(any_profile())
def test_it_accepts_every_profile(one: ServingProfile) -> None:
    OF_PROFILE.validate(yaml.safe_load(dump(one)))


def test_it_accepts_the_profile_that_ships() -> None:
    text = (ROOT / "profiles" / "translation-tiny-cpu.yaml").read_text(encoding="utf-8")
    OF_PROFILE.validate(yaml.safe_load(text))


def values(found: Any, path: Path_ = ()) -> Iterator[Path_]:  # noqa: ANN401 - any YAML
    """Yield the place of everything in a profile."""
    if path:
        yield path
    if isinstance(found, dict):
        for key in found:
            yield from values(None if key in ALIKE else found[key], (*path, key))
    elif isinstance(found, list) and found:
        yield from values(found[0], (*path, 0))


WHOLE = yaml.safe_load(dump(profile(curve=(step(16),))))
WRONG = (None, True, -1, "no", 0.5)
ALIKE = {"itl_ms", "e2el_ms", "measured", "predicted"}
"""Sections of whose kind there are others."""


def reads(content: dict[str, Any]) -> bool:
    """Whether tuner reads this as a profile, once it is sealed."""
    if "digest" in content and content["digest"] == WHOLE["digest"]:
        content = {**content, "digest": _digest(content)}
    try:
        parse(json.dumps(content), source="here")
    except ProfileError:
        return False
    return True


def damaged(path: Path_) -> Iterator[dict[str, Any]]:
    """Yield the profile without what is there, with more beside it, and with what is wrong."""

    def place(content: Any) -> Any:  # noqa: ANN401 - any YAML
        for key in path[:-1]:
            content = content[key]
        return content

    gone = copy.deepcopy(WHOLE)
    del place(gone)[path[-1]]
    yield gone
    if isinstance(path[-1], str):
        more = copy.deepcopy(WHOLE)
        place(more)["one more"] = 1
        yield more
    for wrong in WRONG:
        other = copy.deepcopy(WHOLE)
        place(other)[path[-1]] = wrong
        yield other


AGREE_ELSEWHERE = {
    ("engine", "max_num_seqs"),
    ("decision", "max_num_seqs"),
    ("curve", 0, "max_num_seqs"),
    ("provenance", "created"),
    ("digest",),
}
"""What only the reader can tell: what two values must agree on, and a time from any text."""


@pytest.mark.parametrize("path", list(values(WHOLE)), ids=lambda path: ".".join(map(str, path)))
def test_the_schema_and_the_reader_agree_on_what_is_broken(path: Path_) -> None:
    for content in damaged(path):
        accepts = OF_PROFILE.is_valid(content)
        if path in AGREE_ELSEWHERE:
            assert accepts or not reads(content)
        else:
            assert accepts == reads(content), content


@pytest.mark.parametrize(
    ("section", "changes", "is_right"),
    [
        ("engine", {"tokenizer": "-x"}, False),
        ("engine", {"tokenizer": "x"}, True),
        ("engine", {"model": "-x"}, False),
        ("provenance", {"sampling": {"n": 2}}, False),
        ("provenance", {"sampling": {"temperature": 3}}, False),
        ("provenance", {"sampling": {"top_k": 1.5}}, False),
        ("provenance", {"sampling": {"top_k": 20, "presence_penalty": -1}}, True),
    ],
)
def test_they_agree_on_names_and_on_how_tokens_are_drawn(
    section: str, changes: dict[str, Any], *, is_right: bool
) -> None:
    content = {**WHOLE, section: {**WHOLE[section], **changes}}
    assert (OF_PROFILE.is_valid(content), reads(content)) == (is_right, is_right)


def row(**changes: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 5, "output_length": 3, **changes}


ROWS: tuple[dict[str, object], ...] = (
    row(),
    row(status="aborted", output_length=0),
    row(status="rejected", input_length=None, output_length=None),
    row(hash_ids=[1], session_id=7, priority=-3, lora=None),
    row(whatever=1),
    row(timestamp=None),
    row(timestamp=-1),
    row(timestamp="now"),
    row(timestamp=True),
    row(input_length=None),
    row(input_length=0),
    row(input_length=1.5),
    row(output_length=0),
    row(output_length=2**31),
    row(status="lost"),
    row(status="aborted", input_length=0),
    row(n=0),
    row(output_lengths=[-1]),
    row(hash_ids=["a"]),
    row(e2e_ms=-1),
    row(stream="yes"),
    row(lora=5),
)


@pytest.mark.parametrize("one", ROWS, ids=json.dumps)
def test_the_schema_and_the_reader_agree_on_a_row(one: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [one, row(timestamp=1), row(timestamp=2)]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert OF_TRACE.is_valid(one) == (len(load(path).requests) == 3)


HEADERS: tuple[dict[str, object], ...] = (
    {"tuner_trace": 1},
    {"tuner_trace": 1, "time_unit": "ms", "block_size": 16, "model": None},
    {"tuner_trace": 2},
    {"tuner_trace": 1, "time_unit": "s"},
    {"tuner_trace": 1, "block_size": 0},
    {"tuner_trace": 1, "dropped": {"malformed": -1}},
    {"tuner_trace": 1, "notes": "none"},
)


@pytest.mark.parametrize("one", HEADERS, ids=json.dumps)
def test_the_schema_and_the_reader_agree_on_a_header(
    one: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(one) + "\n" + json.dumps(row()) + "\n")
    try:
        load(path)
        reads = True
    except TraceError:
        reads = False
    assert OF_TRACE.is_valid(one) == reads


@pytest.mark.parametrize("trace", sorted(SAMPLES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_it_accepts_every_line_of_the_traces_that_ship(trace: Path) -> None:
    for line in trace.read_text(encoding="utf-8").splitlines()[:200]:
        OF_TRACE.validate(json.loads(line))
