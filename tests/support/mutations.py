"""Damage that files meet with: cut off, doubled, mixed up, with hostile values in places."""

import random
import re

TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null|[\w-]+')
HOSTILE = (
    *(b"", b"0", b"-1", b"-0.0", b"1", b"1.5", b"1e999", b"-1e999", b"1e30", b"NaN", b"Infinity"),
    *(b"9" * 18, b"9" * 19, b"9" * 20, b"9" * 400, b"9" * 5000, b"2147483648", b"1e-400"),
    *(b"true", b"null", b'"null"', b'"-"', b'""', b"[]", b"{}", b'{"a":1,"a":2}', b"[" * 3000),
    *(b'{"a":' * 3000, b'"\\ud800"', b"\xff", b"\xef\xbb\xbf", b"\x00", b"\r", b"\n", b"\n\n"),
    *(b'"2025-13-45T99:99:99Z"', b'"2025-01-24 09:20:46.847371"', b'"0001-01-01T00:00:00+23:59"'),
    *(b'"9999-12-31T23:59:59-23:59"', b"1970-01-01 00:00:00.0", b'"1e5"', b'"\xd9\xa3"', b'"x"'),
    *(b"[null]", b"[-1]", b"[1.5]", b'["a"]', b"[[]]", b"[9223372036854775808]", b",", b":", b'"'),
    *(b"1700000000", b"1700000000000", b"1700000000000000000", b"10000000000000000000000"),
    b"[" + b"1," * 5000 + b"1]",
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content after one to four kinds of damage, at places that ``rng`` chooses."""
    for _ in range(rng.randint(1, 4)):
        content = rng.choice(KINDS)(content, rng)
    return content


def _value(content: bytes, rng: random.Random) -> bytes:
    tokens = list(TOKEN.finditer(content))
    if not tokens:
        return content + rng.choice(HOSTILE)
    start, end = rng.choice(tokens).span()
    return content[:start] + rng.choice(HOSTILE) + content[end:]


def _swapped_values(content: bytes, rng: random.Random) -> bytes:
    tokens = list(TOKEN.finditer(content))
    if len(tokens) < 2:
        return content
    one, other = sorted(rng.sample(tokens, 2), key=lambda token: token.start())
    return b"".join(
        (
            content[: one.start()],
            other[0],
            content[one.end() : other.start()],
            one[0],
            content[other.end() :],
        )
    )


def _bytes(content: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(content))
    return content[:at] + rng.randbytes(rng.randint(0, 3)) + content[at + rng.randint(0, 3) :]


def _cut_off(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randint(0, len(content))]


def _cut_out(content: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(content))
    return content[:start] + content[start + rng.randint(0, 40) :]


def _doubled(content: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(content))
    part = content[start : start + rng.randint(0, 80)]
    return content[:start] + part * rng.choice((2, 3, 50)) + content[start + len(part) :]


def _lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    kind = rng.randrange(4)
    if kind == 0:
        rng.shuffle(lines)
    elif kind == 1:
        lines *= rng.choice((2, 20))
    elif kind == 2:
        lines.insert(rng.randint(0, len(lines)), rng.choice(HOSTILE))
    else:
        del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def _layout(content: bytes, rng: random.Random) -> bytes:
    """One array, or one line, or other line ends."""
    if rng.random() < 0.5:
        return content.replace(b"\n", rng.choice((b"\r\n", b"\r", b" ", b",\n")))
    body = content.strip().replace(b"}\n{", b"},\n{")
    return rng.choice((b"[" + body + b"]", b"[" + body, b"[ " + body + b",]", body + b"]"))


KINDS = (
    _value, _value, _value, _swapped_values, _bytes, _cut_off, _cut_out, _doubled, _lines, _layout,
)  # fmt: skip
