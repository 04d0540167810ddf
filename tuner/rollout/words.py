"""Command lines: their words, the variables in them, where vLLM begins, and its flags.

Reading must be right, because every edit is read again (``tuner.rollout.edit``). Nothing here
knows where in a file a word stands.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import SHORT, TAKES, canonical
from tuner.engines.vllm.values import typed
from tuner.rollout.known import FACTS, NO_WORD, are_vllms, starts_vllm
from tuner.rollout.server import Server


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
    return unquoted_words(text, env)


def unquoted_words(text: str, env: Mapping[str, str]) -> list[str]:
    return [bare for words in commands(text) for word in words for bare in unquoted(word, env)]


def filled(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables that are known; others stay as they are spelt."""
    return _VARIABLE.sub(
        lambda match: (
            env.get(match["a"] or match["b"] or match["c"]) or match["default"] or match[0]
        ),
        text,
    )


def unquoted(word: str, env: Mapping[str, str]) -> list[str]:
    """Return the words that a shell makes of one: a variable alone may hold several."""
    alone = _ALONE.fullmatch(word)
    if alone and (alone["all"] or not word.startswith('"')):
        name = alone["name"] + ((alone["all"] and "[@]") or "")
        if name in env:  # within its own value it is not known
            return unquoted_words(env[name], {k: v for k, v in env.items() if k != name})
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
class Launch:
    """A server of vLLM's among the words that start a process."""

    words: Sequence[str]
    """Its own words."""

    rest: tuple[object, ...] = ()
    """All other words, in order: an edit leaves them alone."""

    image: str = ""
    is_proven: bool = True


_FOLDER = r"(?:[^\0 ]*/)?"
_WORD = r"[^\0]*\0"
_SETS = r"\w+\+?=[^\0]*\0"
_AMOUNT = rf"{_FOLDER}(?:0x[\da-f]+|\d[\d.,:-]*)[smhd]?\0"


def _one_of(table: str) -> str:
    return rf"{_FOLDER}(?:{'|'.join(map(re.escape, FACTS[table]))})\0"


_LAUNCHER = _one_of("launchers")
_START = re.compile(
    rf"""(?:{_SETS})*
    (?:{_one_of("launchers_of_one_word")}{_WORD} | exec\0-a\0{_WORD}
      |(?!exec\0-a\0){_LAUNCHER}
        (?:-{_WORD}(?:(?!-|{_SETS}|{_AMOUNT}|{_LAUNCHER}){_WORD})? | {_SETS} | {_AMOUNT})*
    )*
    (?:(?P<vllm>{_FOLDER}vllm\0serve\0
        |{_FOLDER}python[\d.]*\0(?:-[^\0\ m]{_WORD})*
         (?:-m\0(?:vllm\0serve|vllm\.entrypoints\.(?:(?:openai\.)?api_server|cli\.main\0serve))
         |{_FOLDER}vllm\0serve
         |[^\0 ]*vllm/entrypoints/(?:(?:openai/)?api_server\.py|cli/main\.py\0serve))\0)
      |(?P<shell>{_one_of("shells")}) | (?P<script>{_one_of("take_scripts")})
      |(?P<engine>{_one_of("engines")}) | (?P<cluster>{_one_of("images_of_clusters")}))""",
    re.VERBOSE,
)
"""How a command line begins whose words end in NUL: what sets variables and launches, then what
starts a server, or what starts another command line.

An option's value cannot be told from a program, so a word behind an option may be either; all other
words have one reading, so that nothing is tried twice.
"""

_CONTAINER = re.compile(
    rf"""(?:{_WORD})+?(?:run|create|exec)\0
    (?:(?:{"|".join(FACTS["docker_switches"])}|-[dhiPqt]+)\0|-[^\0]*=[^\0]*\0|-{_WORD}{_WORD})*+
    (?P<image>[^-\0][^\0]*)\0""",
    re.VERBOSE,
)
"""``docker run``, up to its image: the first word that is no option and no option's value."""


def _joined(words: Sequence[str]) -> str:
    return "".join(f"{word}\0" for word in words)


def vllm_in(words: Sequence[str], env: Mapping[str, str], image: str = "") -> Launch | None:
    """Return the server that words start; ``image`` starts them where they are no program.

    >>> vllm_in(["exec", "vllm", "serve", "acme/m"], {}).words
    ['acme/m']
    >>> vllm_in(["gateway", "-poolName", "vllm", "serve"], {}) is None
    True
    """
    start = _START.match(_joined(words))
    if start is not None and start["vllm"]:
        own = start[0].count("\0")
        return Launch(words[own:], tuple(words[:own]))
    if start is not None:
        at = start[0][: start.start(start.lastgroup or 0)].count("\0")
        find = {"engine": _in_container, "cluster": _in_cluster}.get(
            start.lastgroup or "", _in_text
        )
        launch = find(words[at:], env)
        if launch is not None:
            return replace(launch, rest=(*words[:at], *launch.rest))
    if starts_vllm(image):
        own = int(words[:1] == ["serve"])
        return Launch(words[own:], tuple(words[:own]), image)
    return None


def _in_text(words: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the server that a text starts, which is handed to a shell."""
    is_shell = words[0].rpartition("/")[2] in FACTS["shells"]
    texts = [b for a, b in pairwise(words) if re.fullmatch(r"-\w*c", a) or not is_shell]
    return next(filter(None, (in_script(text, env) for text in texts if " " in text)), None)


def _in_container(words: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the server that ``docker run`` starts."""
    start = _CONTAINER.match(_joined(words))
    if start is None:
        return None
    entry = re.findall(r"\0--entrypoint[=\0]([^\0]*)", start[0])
    own = start[0].count("\0")
    launch = vllm_in([*entry, *words[own:]], env, "" if entry else start["image"])
    image = launch.image if launch and launch.image else start["image"]
    return launch and replace(launch, rest=(*words[:own], *launch.rest), image=image)


def _in_cluster(words: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the server that ``apptainer exec`` and its like start: options that nobody lists, an
    image, a program."""
    for at in range(2, len(words)):
        image = words[at - 1] if starts_vllm(words[at - 1]) else ""
        if image or re.fullmatch(r"(?:.*/)?(?:vllm|python[\d.]*|ba?sh)", words[at]):
            launch = vllm_in(words[at:], env, image)
            if launch:
                return replace(launch, rest=(*words[:at], *launch.rest))
    return None


def in_script(text: str, env: Mapping[str, str]) -> Launch | None:
    """Return the one server that a shell's script starts. Raises UnreadableError for several."""
    known, starts, rest = dict(env), list[tuple[Launch, list[str]]](), list[object]()
    for raw in commands(text):
        assigned = _assign(raw, known)
        words = [bare for word in raw for bare in unquoted(word, known)]
        launch = vllm_in(words, known)
        if launch is not None:
            if "<<" in raw:
                raise UnreadableError("it reads a here-document", "<<")
            starts.append((launch, raw))
            rest.append(launch.rest)
        elif assigned < len(raw):
            rest.append(tuple(raw))
    if len(starts) > 1:
        raise UnreadableError(f"it starts {len(starts)} servers of vLLM", starts[1][1][0])
    return replace(starts[0][0], rest=tuple(rest)) if starts else None


def _assign(raw: Sequence[str], known: dict[str, str]) -> int:
    """Set the variables that a command begins with, and return how many words that takes."""
    for at, word in enumerate(raw):
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment is None:
            if word in {"export", "readonly", "local", "declare"} or word.startswith("-"):
                continue
            return at
        name, adds, value = assignment.groups()
        is_list = value.startswith("(")
        name = f"{name}[@]" if is_list else name
        value = value[1:-1] if is_list else " ".join(unquoted(value, known))
        known[name] = known.get(name, "") + " " * is_list + value if adds else value
    return len(raw)


def reading(server: Server, find: Callable[[], Launch | None], *, is_sure: bool) -> Server | None:
    """Return the server with what its words say; None where they are not seen to be vLLM's.

    With ``is_sure`` also one that cannot be read, and why.
    """
    try:
        launch = find()
        arguments = read_flags(launch.words) if launch else {}
    except (UnreadableError, RecursionError) as problem:  # a script may run itself
        near = getattr(problem, "near", "")
        unread = replace(server, is_proven=True, problem=str(problem), near=near)
        return unread if is_sure else None
    if launch is None or not (launch.is_proven or are_vllms(arguments)):
        return None
    return replace(
        server,
        arguments=arguments,
        is_proven=launch.is_proven,
        words=launch.words,
        rest=(server.rest, launch.rest),
        image=launch.image or server.image,
    )


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
    while inline is None and rest and (TAKES.get(name) == "words" or not values):
        if rest[0].startswith("-") and not re.fullmatch(r"-\d[\d.]*", rest[0]):
            break
        values.append(rest.popleft())
    if TAKES.get(name) == "words":
        return [typed(each) for each in values]
    if not values and TAKES.get(name) == "word":
        raise UnreadableError(f"{word} has no value", word)
    return typed(values[0]) if values else None
