"""A stream of completions, however it is cut into pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.completions import DONE, EMPTY_END, TOKEN, usage
from tuner.engines.server.stream import MOST_EVENT_BYTES, CompletionStream, StreamError


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_wherever_it_is_cut_each_output_is_counted_once(cuts: list[int]) -> None:
    whole = TOKEN * 3 + b": a comment\n\n" + usage(3) + DONE
    places = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    stream = CompletionStream()
    pieces = [whole[begin:end] for begin, end in pairwise(places)]
    assert sum(map(stream.feed, pieces)) == stream.outputs == 3
    assert stream.usage is not None
    assert (stream.usage.completion_tokens, stream.usage.prompt_tokens) == (3, 3)


def test_line_ends_of_windows_and_missing_blanks_are_read() -> None:
    stream = CompletionStream()
    assert stream.feed(TOKEN.replace(b"\n", b"\r\n").replace(b"data: ", b"data:")) == 1


def test_an_end_without_text_is_no_output_until_the_count_says_so() -> None:
    stream = CompletionStream()
    assert stream.feed(TOKEN + EMPTY_END) == 1
    assert stream.has_empty_end


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"data: {oops}\n\n", "no completion"),
        (b'data: {"choices": 3}\n\n', "no completion"),
        (b'data: {"error": {"message": "out of luck", "code": 500}}\n\n', "out of luck"),
        (b"<html>" * (MOST_EVENT_BYTES // 5), "no event ends"),
        (b'data: {"usage": {"completion_tokens": -1}}\n\n', "no completion"),
        (b'data: {"usage": {"completion_tokens": 1%b}}\n\n' % (b"0" * 30), "no completion"),
        (b'data: {"usage": {"completion_tokens": 1%b}}\n\n' % (b"0" * 5000), "no completion"),
        (b'data: {"odd": %b}\n\n' % (b"[" * 200_000), "no completion"),
    ],
)
def test_what_is_no_stream_of_completions_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(StreamError, match=why):
        CompletionStream().feed(data)
