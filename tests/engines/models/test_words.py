"""Prompts as text, against tokenizers that fit in the head, and the shipped one."""

from collections.abc import Mapping
from typing import Any

import pytest

from tuner.engines.models import shipped
from tuner.engines.models.words import COMMON, FEWEST, IDS, Words, words_of
from tuner.errors import EngineError


class Server:
    """Tokenizes: words that it knows are one token, of all others each letter is."""

    def __init__(self, known: list[str], mark: str = "\u0120") -> None:
        self.known, self.mark, self.asked = known, mark, 0

    def __call__(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON content
        self.asked += 1
        if path == "/detokenize":
            assert body["tokens"] == list(IDS)
            return {"prompt": " ".join(self.known)}
        assert body["add_special_tokens"] is False
        pieces = [
            piece
            for word in body["prompt"].split()
            for piece in ([self.mark + word] if word in self.known else list(word))
        ]
        return {"token_strs": pieces}


@pytest.mark.parametrize("mark", ["", "\u0120", "\u2581", " "])
def test_common_words_do_where_they_are_one_token_each(mark: str) -> None:
    server = Server([*COMMON], mark)
    assert words_of(server) == COMMON
    assert server.asked == 1


def test_a_word_that_is_several_tokens_is_none() -> None:
    assert set(words_of(Server([one for one in COMMON if one != "about"]))) == {*COMMON} - {"about"}


def test_where_common_words_are_not_known_the_vocabularys_own_are_taken() -> None:
    own = [f"{one}{other}" for one in "bcdfgk" for other in "aeiouy"]
    assert set(words_of(Server(own))) == set(own)  # "be" and "by" are common, too


def test_where_too_few_words_are_one_token_it_is_said_what_to_do() -> None:
    with pytest.raises(EngineError, match="only 3 words are one token") as caught:
        words_of(Server(["about", "after", "all"]))
    assert "leave --send out" in caught.value.hint


def test_the_same_ids_are_the_same_text_and_each_is_one_word() -> None:
    words = Words(("a", "b", "c"))
    assert words.prompt([16, 17, 19, 16]) == {"prompt": "b c b b", "add_special_tokens": False}


@pytest.mark.parametrize("name", ["tuner:tiny", "tuner:1b"])
def test_what_is_sent_has_as_many_tokens_as_the_shipped_tokenizers_read(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(f"{shipped.model_path(name)}/tokenizer.json")

    def ask(path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON content
        if path == "/detokenize":
            return {"prompt": tokenizer.decode(body["tokens"])}
        read = tokenizer.encode(body["prompt"], add_special_tokens=False)
        return {"token_strs": read.tokens}

    words = Words(tuple(words_of(ask)))
    assert len(words.words) >= FEWEST
    text = words.prompt(list(IDS))["prompt"]
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == len(IDS)
