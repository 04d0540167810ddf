from pathlib import Path

import pytest

from tests.format_examples import EXAMPLES, jsonl, read
from tuner.errors import TraceError
from tuner.formats.refused import REFUSED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0,1.5,1.1,Gamma,0.8,0.6\n600,2.5,1.0,Weibull,0.9,0.3\n", "a ServeGen rate file"),
        ("600,1.5,1.1,,0.8,0.6\n", "a ServeGen rate file"),
        ('{"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{2: 1.0}"}}', "ServeGen length"),
        ("time_sec,concurrency\n0,4\n60,16\n", "a concurrency schedule"),
        (jsonl({"time_sec": 0, "concurrency": 4}), "a concurrency schedule"),
        ('[{"time_sec": 0, "concurrency": 4}]', "a concurrency schedule"),
        (jsonl({"prompt": "", "output_tokens": 10}), "prompts without arrival times"),
        ('[{"id": "x", "conversations": []}]', "prompts without arrival times"),
    ],
)
def test_what_can_be_no_trace_is_refused_by_name_with_what_to_do_instead(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path / "t", content, None)
    assert str(caught.value).startswith(str(tmp_path / "t"))
    assert caught.value.hint


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_trace_is_refused_for_what_it_is_not(name: str) -> None:
    assert [one.what for one in REFUSED if one.sniff(EXAMPLES[name].encode())] == []
