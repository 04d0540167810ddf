"""Command lines: their words, the variables in them, where vLLM begins, and its flags.

Reading must be right, because every edit is read again (``tuner.rollout.edit``). Nothing here
knows where in a file a word stands.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import GRAMMAR, LISTS, SHORT, canonical
from tuner.engines.vllm.values import typed
from tuner.rollout.known import FACTS, NO_WORD, starts_vllm


class UnreadableError(Exception):
    """A command line that cannot be read or edited safely; ``near`` is a part of it."""

    def __init__(self, why: str, near: str = "") -> None:
        super().__init__(why)
        self.near = near


_SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_PIECE = rf"""'[^']*'|"(?:\\.|{_SUBSTITUTION}|[^"\\])*"|{_SUBSTITUTION}|\$\{{[^}}]*\}}|`[^`]*`
    |\{{\{{.*?\}}\}}|\\."""
_TOKEN = re.compile(
    rf"""(?P<blank>(?:[^\S\n]|\\\r?\n)+|\#[^\n]*)
    |(?P<redirect>\d*(?:<<<|<<-?|>>|[<>])(?:&\d*)?)
    |(?P<end>&&|\|\||;;|[;&|()\n])
    |(?P<word>(?:\w+\+?=\((?:'[^']*'|"(?:\\.|[^"\\])*"|[^()'"])*\)|{_PIECE}|[^\s;&|()<>'"\\`])+)
    |(?P<open>.)""",
    re.VERBOSE | re.DOTALL,
)
_HERE_DOCUMENT = re.compile(
    r"(<<-?[ \t]*(['\"]?)(\w+)\2[^\n]*\n)(.*?\n)??[ \t]*\3[ \t]*(?=\r?\n|$)", re.DOTALL
)
_VARIABLE = re.compile(
    r"\$(?P<a>\w+)|\$\{(?P<b>\w+)(?:(?::?[-=])(?P<default>[^{}]*))?\}|\$\((?P<c>[\w.-]+)\)"
)
_ALONE = re.compile(r"\"?\$\{?(?P<name>\w+)(?P<all>\[[@*]\])?(?::?-[^}]*)?\}?\"?")
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)
_ELSEWHERE = re.compile(r"\$[\w({@*]|\{\{|`|^%\w")


def is_elsewhere(value: object) -> bool:
    """Whether a value is decided by what nobody knows here: a variable, a template.

    >>> is_elsewhere("${N}"), is_elsewhere("{{ .Values.n }}"), is_elsewhere(8)
    (True, True, False)
    """
    return isinstance(value, str) and _ELSEWHERE.search(value) is not None


def commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's script, each as its words, still quoted.

    That a command reads a here-document is its word ``<<``. Raises UnreadableError.
    """
    words: list[str] = []
    is_target = False
    text = _HERE_DOCUMENT.sub(r"\1", text)
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "open":
            raise UnreadableError(f"a {token[0]} that nothing closes", token[0])
        if kind == "end":
            yield words
            words = []
        elif kind == "redirect":
            is_target = not token[0][-1:].isdigit()
            words += ["<<"] if token[0].endswith(("<<", "<<-")) else []
        elif kind == "word":
            words += [] if is_target else [token[0]]
            is_target = False
    yield words


def split(text: str, env: Mapping[str, str]) -> list[str]:
    """Return the words of a text that is not a script: a second command in it is refused."""
    every = [words for words in commands(text) if words]
    if len(every) > 1:
        raise UnreadableError("holds several commands", every[1][0])
    return [bare for words in every for word in words for bare in unquoted(word, env)]


def filled(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables that are known; others stay as they are spelt."""
    return _VARIABLE.sub(
        lambda found: (
            env.get(found["a"] or found["b"] or found["c"]) or found["default"] or found[0]
        ),
        text,
    )


def unquoted(word: str, env: Mapping[str, str]) -> list[str]:
    """Return the words that a shell makes of one: a variable alone may hold several."""
    alone = _ALONE.fullmatch(word)
    if alone and (alone["all"] or not word.startswith('"')):
        value = env.get(alone["name"] + ((alone["all"] and "[@]") or ""))
        if value is not None:
            return [
                each for inner in commands(value) for raw in inner for each in unquoted(raw, env)
            ]
    parts = []
    for piece in re.findall(rf"{_PIECE}|.", word, re.VERBOSE | re.DOTALL):
        if piece[0] == "'":
            parts.append(piece[1:-1])
        elif piece[0] == '"':
            parts.append(re.sub(r"\\([\"\\$`\n])", r"\1", filled(piece[1:-1], env)))
        else:
            parts.append(piece[1:] if piece[0] == "\\" else piece)
    return [filled("".join(parts), env) if "'" not in word else "".join(parts)]


# Where vLLM begins


@dataclass(frozen=True)
class Found:
    """A server of vLLM's among the words that start a process."""

    words: Sequence[str]
    """Its own words."""

    proof: str
    """What shows that it is vLLM."""

    rest: tuple[object, ...] = ()
    """All other words, in order: an edit leaves them alone."""

    image: str = ""


_SERVER = re.compile(
    r"(?:\S*/)?vllm serve|(?:\S*/)?python[\d.]* (?:-[^\sm]\S* )*"
    r"(?:-m (?:vllm serve|vllm\.entrypoints\.(?:(?:openai\.)?api_server|cli\.main serve))"
    r"|(?:\S*/)?vllm serve|\S*vllm/entrypoints/(?:(?:openai/)?api_server\.py|cli/main\.py serve))"
)
"""The words that start a server, joined by blanks."""

_LONGEST_START = 9
_AMOUNT = re.compile(r"(?:0x[\da-f]+|\d[\d.,:-]*)[smhd]?")


def vllm_in(words: Sequence[str], env: Mapping[str, str], image: str = "") -> Found | None:
    """Return the server that words start; ``image`` starts them where they are no program.

    >>> vllm_in(["exec", "vllm", "serve", "acme/m"], {}).words
    ['acme/m']
    >>> vllm_in(["gateway", "-poolName", "vllm", "serve"], {}) is None
    True
    """
    for at in _programs(words):
        found = _started(words[at:], env)
        if found is not None:
            return replace(found, rest=(*words[:at], *found.rest))
    if why := starts_vllm(image):
        own = int(words[:1] == ["serve"])
        return Found(words[own:], why, tuple(words[:own]), image)
    return None


def _programs(words: Sequence[str]) -> Iterator[int]:
    """Yield which words may be the program.

    That is the first word that sets no variable. Behind a launcher it may be any word that follows
    an option, because an option's value cannot be told from a program, and the first that is none.
    """
    at, is_launched = 0, False
    while at < len(words):
        name = words[at].rpartition("/")[2]
        if name in FACTS["launchers_of_one_word"] or words[at : at + 2] == ["exec", "-a"]:
            is_launched, at = True, at + 2 + (name == "exec")
        elif name in FACTS["launchers"]:
            is_launched, at = True, at + 1
        elif is_launched and words[at].startswith("-"):
            at += 1
            if at < len(words) and not words[at].startswith("-"):
                yield at
                at += 1
        elif _ASSIGNMENT.fullmatch(words[at]) or (is_launched and _AMOUNT.fullmatch(name)):
            at += 1
        else:
            yield at
            return


def _started(words: Sequence[str], env: Mapping[str, str]) -> Found | None:
    """Return the server, should the first word be the program."""
    for length in range(2, min(_LONGEST_START, len(words)) + 1):
        start = words[:length]
        if not any(" " in word for word in start) and _SERVER.fullmatch(" ".join(start)):
            return Found(words[length:], " ".join(start), tuple(start))
    name = words[0].rpartition("/")[2]
    if name in FACTS["shells"] or name in FACTS["take_scripts"]:
        is_shell = name in FACTS["shells"]
        texts = [b for a, b in pairwise(words) if re.fullmatch(r"-\w*c", a) or not is_shell]
        return next(filter(None, (in_script(text, env) for text in texts if " " in text)), None)
    if name in FACTS["engines"]:
        return _in_container(words, env)
    if name in FACTS["images_of_clusters"]:  # options that nobody lists, an image, a program
        for at in range(2, len(words)):
            image = words[at - 1] if starts_vllm(words[at - 1]) else ""
            if image or re.fullmatch(r"(?:.*/)?(?:vllm|python[\d.]*|ba?sh)", words[at]):
                found = vllm_in(words[at:], env, image)
                if found:
                    return replace(found, rest=(*words[:at], *found.rest), image=found.image)
    return None


def _in_container(words: Sequence[str], env: Mapping[str, str]) -> Found | None:
    """Return the server that ``docker run`` starts: its image is the first word that is no option
    and no option's value."""
    at = next((n for n, word in enumerate(words) if word in {"run", "create", "exec"}), len(words))
    at += 1
    entrypoint: list[str] = []
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name == "--entrypoint":
            entrypoint = [value] if equals else list(words[at + 1 : at + 2])
        is_switch = name in FACTS["docker_switches"]
        is_switch |= name[1:2] != "-" and set(name[1:]) <= set("dhiPqt")
        at += 1 + (not equals and not is_switch)
    if at >= len(words):
        return None
    found = vllm_in([*entrypoint, *words[at + 1 :]], env, "" if entrypoint else words[at])
    image = found.image if found and found.image else words[at]
    return found and replace(found, rest=(*words[: at + 1], *found.rest), image=image)


def in_script(text: str, env: Mapping[str, str]) -> Found | None:
    """Return the one server that a shell's script starts. Raises UnreadableError for several."""
    known, starts, rest = dict(env), list[tuple[Found, list[str]]](), list[object]()
    for raw in commands(text):
        assigned = _assign(raw, known)
        words = [bare for word in raw for bare in unquoted(word, known)]
        found = vllm_in(words, known)
        if found is not None:
            if "<<" in raw:
                raise UnreadableError("it reads a here-document", "<<")
            starts.append((found, raw))
            rest.append(found.rest)
        elif assigned < len(raw):
            rest.append(tuple(raw))
    if len(starts) > 1:
        raise UnreadableError(f"it starts {len(starts)} servers of vLLM", starts[1][1][0])
    return replace(starts[0][0], rest=tuple(rest)) if starts else None


def _assign(raw: Sequence[str], known: dict[str, str]) -> int:
    """Set the variables that a command begins with, and return how many words that takes."""
    for at, word in enumerate(raw):
        one = _ASSIGNMENT.fullmatch(word)
        if one is None:
            if word in {"export", "readonly", "local", "declare"} or word.startswith("-"):
                continue
            return at
        name, adds, value = one.groups()
        is_list = value.startswith("(")
        name = f"{name}[@]" if is_list else name
        value = value[1:-1] if is_list else " ".join(unquoted(value, known))
        known[name] = known.get(name, "") + " " * is_list + value if adds else value
    return len(raw)


# Flags


def read_flags(words: Sequence[str]) -> dict[str, ArgumentValue]:
    """Return the arguments that vLLM's own words set; one that is not known keeps its spelling.

    Raises UnreadableError for what may hold more flags.

    >>> read_flags(["acme/m", "--max-num-seqs", "8", "--no-enable-prefix-caching"])
    {'max_num_seqs': 8, 'enable_prefix_caching': False, 'model': 'acme/m'}
    """
    arguments, free, rest = dict[str, ArgumentValue](), list[str](), deque(words)
    while rest:
        word = rest.popleft()
        name, is_off, inline = _flag(word)
        if not name:
            free.append(word)
            continue
        is_switch = name in NO_WORD or is_off
        value = not is_off if is_switch else _value(word, name, inline, rest)
        # what is there twice is kept as both, so that neither can change unseen
        arguments[name] = [arguments[name], value] if name in arguments else value
    if "model" not in arguments and "model_id" in arguments:
        arguments["model"] = arguments["model_id"]
    begin = 0 if "model" in arguments else 1
    for word in free[begin:]:
        may = (
            "may hold more flags" if is_elsewhere(word) else "is neither a flag nor a flag's value"
        )
        raise UnreadableError(f"{word[:40]} {may}", word)
    if begin and free:
        arguments["model"] = free[0]
    if "config" in arguments:
        raise UnreadableError("another file decides: --config", "config")
    return arguments


def _flag(word: str) -> tuple[str, bool, str | None]:
    """Return the argument that a flag names, whether it switches it off, and the value in it; no
    name where the word is no flag."""
    flag, equals, inline = word.partition("=")
    if flag in SHORT:
        return SHORT[flag], False, inline if equals else None
    if level := re.fullmatch(r"-O([^.=].*)", word):
        return "optimization_level", False, level[1]
    if re.fullmatch(r"-[a-zA-Z]+", word):
        raise UnreadableError(f"{word} is no flag of vLLM", word)
    name, is_off = canonical(flag[2:]) if re.match(r"--.|-O.", word) else ("", False)
    return name, is_off, inline if equals else None


def _value(word: str, name: str, inline: str | None, rest: deque[str]) -> ArgumentValue:
    """Return the value of a flag, and take it from the words behind where it is not in the flag."""
    values = [] if inline is None else [inline]
    while inline is None and rest and (name in LISTS or not values):
        if rest[0].startswith("-") and not re.fullmatch(r"-\d[\d.]*", rest[0]):
            break
        values.append(rest.popleft())
    if name in LISTS:
        return [typed(each) for each in values]
    if not values and name in GRAMMAR.words and name not in GRAMMAR.optional:
        raise UnreadableError(f"{word} has no value", word)
    return typed(values[0]) if values else None
