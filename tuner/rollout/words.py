"""Command lines: their words, the variables in them, where vLLM begins, and what its flags say.

Reading must be right, because every edit is read again (``tuner.rollout.edit``). Nothing here
knows where in a file a word stands.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import GRAMMAR, LISTS, SHORT, canonical
from tuner.engines.vllm.values import typed
from tuner.rollout.known import FACTS, NO_WORD, starts_vllm

Told = dict[str, ArgumentValue]
"""What a server is told, by vLLM's names; of an argument that is not known, its own spelling."""


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
    found = [words for words in commands(text) if words]
    if len(found) > 1:
        raise UnreadableError("holds several commands", found[1][0])
    return [bare for words in found for word in words for bare in unquoted(word, env)]


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


_MODULE = re.compile(r"vllm\.entrypoints\.(?:openai\.)?api_server|vllm\.entrypoints\.cli\.main")
_AMOUNT = re.compile(r"(?:0x[\da-f]+|\d[\d.,:-]*)[smhd]?")


def vllm_in(words: Sequence[str], env: Mapping[str, str], image: str = "") -> Found | None:
    """Return the server that words start; ``image`` starts them where they are no program.

    >>> vllm_in(["exec", "vllm", "serve", "acme/m"], {}).words
    ['acme/m']
    >>> vllm_in(["gateway", "-poolName", "vllm", "serve"], {}) is None
    True
    """
    for at in _programs(words):
        found = _started(words, at, env)
        if found is not None:
            return replace(found, rest=(tuple(words[:at]), *found.rest))
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


def _started(words: Sequence[str], at: int, env: Mapping[str, str]) -> Found | None:
    """Return the server, should this word be the program."""
    name, behind = words[at].rpartition("/")[2], words[at + 1 :]
    read = next((read for is_program, read in _PROGRAMS if is_program(name)), None)
    return read(behind, env) if read else None


def _in_vllm(words: Sequence[str], _env: Mapping[str, str]) -> Found | None:
    is_served = words[:1] == ["serve"]
    return Found(words[1:], "vllm serve", ("vllm", "serve")) if is_served else None


def _in_python(words: Sequence[str], env: Mapping[str, str]) -> Found | None:
    at = next((n for n, word in enumerate(words) if word == "-m" or word[:1] != "-"), len(words))
    at += words[at : at + 1] == ["-m"]
    program = words[at] if at < len(words) else ""
    if program.rpartition("/")[2] == "vllm":
        return _in_vllm(words[at + 1 :], env)
    found = _MODULE.search(program.replace("/", ".").removesuffix(".py"))
    if found is None or (found[0].endswith("main") and words[at + 1 : at + 2] != ["serve"]):
        return None
    at += 1 + found[0].endswith("main")
    return Found(words[at:], f"python -m {found[0]}", tuple(words[:at]))


def _in_shell(words: Sequence[str], env: Mapping[str, str]) -> Found | None:
    """Return the server of ``sh -c TEXT``."""
    texts = (text for option, text in pairwise(words) if re.fullmatch(r"-\w*c", option))
    return next((in_script(text, env) for text in texts), None)


def _in_texts(words: Sequence[str], env: Mapping[str, str]) -> Found | None:
    """Return the server of a text that is handed to a shell, or of the words behind options."""
    texts = (in_script(word, env) for word in words if " " in word)
    return next((found for found in texts if found), None)


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
    return found and _behind(found, words[: at + 1], found.image or words[at])


def _in_cluster(words: Sequence[str], env: Mapping[str, str]) -> Found | None:
    """Return the server behind the options and the image of ``apptainer`` and its like."""
    for at in range(1, len(words)):
        if re.fullmatch(r"(?:.*/)?(?:vllm|python[\d.]*|ba?sh)", words[at]):
            found = vllm_in(words[at:], env)
        else:
            image = words[at] if starts_vllm(words[at]) else ""
            found = vllm_in(words[at + 1 :], env, image) if image else None
        if found:
            return _behind(found, words[: at + 1], found.image)
    return None


def _behind(found: Found, words: Sequence[str], image: str) -> Found:
    return replace(found, rest=(tuple(words), *found.rest), image=image)


_PROGRAMS: tuple[tuple[Callable[[str], object], Callable[..., Found | None]], ...] = (
    ("vllm".__eq__, _in_vllm),
    (re.compile(r"python[\d.]*").fullmatch, _in_python),
    (FACTS["shells"].__contains__, _in_shell),
    (FACTS["take_scripts"].__contains__, _in_texts),
    (FACTS["engines"].__contains__, _in_container),
    (FACTS["images_of_clusters"].__contains__, _in_cluster),
)
"""Which programs start a server, and how it is found in the words behind them."""


def in_script(text: str, env: Mapping[str, str]) -> Found | None:
    """Return the one server that a shell's script starts. Raises UnreadableError for several."""
    known, found, others = dict(env), list[tuple[Found, str]](), list[tuple[object, ...]]()
    for raw in commands(text):
        for word in raw:
            if not (one := _ASSIGNMENT.fullmatch(word)):
                if word in {"export", "readonly", "local", "declare"} or word.startswith("-"):
                    continue
                break
            name, adds, value = one.groups()
            if value.startswith("("):
                name, value = f"{name}[@]", value[1:-1]
            else:
                value = " ".join(unquoted(value, known))
            known[name] = (
                f"{known.get(name, '')}{' ' if '[' in name else ''}{value}" if adds else value
            )
        words = [each for word in raw for each in unquoted(word, known)]
        server = vllm_in(words, known)
        if server is None:
            others.append(tuple(words))
            continue
        if "<<" in raw:
            raise UnreadableError("it reads a here-document", "<<")
        found.append((server, " ".join(raw)))
        others.append(server.rest)
    if len(found) > 1:
        raise UnreadableError(f"it starts {len(found)} servers of vLLM", found[1][1][:20])
    if not found:
        return None
    server, raw_text = found[0]
    used = _closure(raw_text, known)
    kept = [each for each in others if not _sets(each, used)]
    return replace(server, rest=tuple(kept))


def _closure(text: str, known: Mapping[str, str]) -> set[str]:
    """Return the variables that a text refers to, also by way of others."""
    used: set[str] = set()
    todo = [text]
    while todo:
        for name in re.findall(r"\$\{?(\w+)", todo.pop()):
            for each in (name, f"{name}[@]"):
                if each not in used:
                    used.add(each)
                    todo.append(known.get(each, ""))
    return used


def _sets(words: Sequence[object], used: set[str]) -> bool:
    """Whether a command does nothing but set variables that the server uses."""
    texts = [str(word) for word in words if word not in {"export", "readonly"}]
    names = [found[1] for text in texts if (found := _ASSIGNMENT.fullmatch(text))]
    return len(names) == len(texts) and bool(names) and used >= set(names)


# What vLLM's flags say


def told(words: Sequence[str]) -> Told:
    """Return what vLLM's own words say. Raises UnreadableError for what may hold more flags.

    >>> told(["acme/m", "--max-num-seqs", "8", "--no-enable-prefix-caching"])
    {'max_num_seqs': 8, 'enable_prefix_caching': False, 'model': 'acme/m'}
    """
    said: Told = {}
    free: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, is_off, inline = _flag(word)
        if not name:
            free.append(word)
            continue
        values = [] if inline is None else [inline]
        while inline is None and rest and name not in NO_WORD and not is_off:
            if _is_flag(rest[0]) or (values and name not in LISTS):
                break
            values.append(rest.popleft())
        _put(said, name, _value(name, values, is_off=is_off, word=word))
    if "model" not in said and "model_id" in said:
        said["model"] = said["model_id"]
    begin = 0 if "model" in said else 1
    for word in free[begin:]:
        if is_elsewhere(word):
            raise UnreadableError(f"{word} may hold more flags", word)
        raise UnreadableError(f"{word[:40]!r} is neither a flag nor a flag's value", word)
    if begin and free:
        said["model"] = free[0]
    if "config" in said:
        raise UnreadableError("another file decides: --config", "config")
    return said


def _flag(word: str) -> tuple[str, bool, str | None]:
    """Return the argument that a flag names, whether it switches it off, and the value in it; no
    name where the word is no flag."""
    flag, equals, inline = word.partition("=")
    if flag in SHORT:
        return SHORT[flag], False, inline if equals else None
    if found := re.fullmatch(r"-O([^.=].*)", word):
        return "optimization_level", False, found[1]
    if re.fullmatch(r"-[a-zA-Z]+", word):
        raise UnreadableError(f"{word} is no flag of vLLM", word)
    name, is_off = canonical(flag[2:]) if re.match(r"--.|-O.", word) else ("", False)
    return name, is_off, inline if equals else None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d[\d.]*", word)


def _value(name: str, values: Sequence[str], *, is_off: bool, word: str) -> ArgumentValue:
    if name in NO_WORD or is_off:
        return not is_off
    if name in LISTS:
        return [typed(each) for each in values]
    if not values:
        if name in GRAMMAR.words and name not in GRAMMAR.optional:
            raise UnreadableError(f"{word} has no value", word)
        return None
    return typed(values[0])


def _put(said: Told, name: str, value: ArgumentValue) -> None:
    """Keep what is said twice as both, so that neither of the two can change unseen."""
    said[name] = [said[name], value] if name in said else value
