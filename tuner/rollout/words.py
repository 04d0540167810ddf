"""Command lines: their words, the variables in them, where vLLM begins, and its flags.

Reading must be right, because every edit is read again (``tuner.rollout.edit``). Nothing here
knows where in a file a word stands.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.engines.arguments import SHORT, TAKES, ArgumentValue, canonical, typed
from tuner.rollout.known import FACTS, NO_WORD, has_vllms_flag, starts_vllm
from tuner.rollout.server import Server, UnreadableError

_SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_PIECE = rf"""'[^']*'|"(?:\\.|{_SUBSTITUTION}|[^"\\])*+"|{_SUBSTITUTION}|\$\{{[^}}]*\}}|`[^`]*`
    |\{{\{{[^{{}}]*\}}\}}|\\."""
_WORD = rf"""(?:\w+\+?=\((?:'[^']*'|"(?:\\.|[^"\\])*"|[^()'"])*\)|{_PIECE}|[^\s;&|()<>'"\\`])+"""
_TOKEN = re.compile(
    rf"""(?P<blank>(?:[^\S\n]|\\\r?\n)+|\#[^\n]*)
    |(?P<redirect>\d*(?:<<<|<<-?|>>|[<>])(?:&\d+|[^\S\n]*{_WORD})?)
    |(?P<end>&&|\|\||;;|[;&|()\n])
    |(?P<word>{_WORD})
    |(?P<open>.)""",
    re.VERBOSE | re.DOTALL,
)
_HERE_DOCUMENT = re.compile(
    r"(<<-?[ \t]*(['\"]?)(\w+)\2[^\n]*\n)(.*?\n)??[ \t]*\3[ \t]*(?=\r?\n|$)", re.DOTALL
)
_VARIABLE = re.compile(
    r"\$(?P<a>\w+)|\$\{(?P<b>\w+)(?:(?::?[-=])(?P<default>[^{}]*))?\}|\$\((?P<c>[\w.-]+)\)"
)
_QUOTED = re.compile(
    rf"""\"?\$\{{(?P<list>\w+)\[[@*]\]\}}\"?|"(?P<double>(?:\\.|{_SUBSTITUTION}|[^"\\])*+)"
    |'[^']*'|\\.|(?P<variable>\$\w+|\$\{{[^}}]*\}})|(?P<output>{_SUBSTITUTION}|`[^`]*`)""",
    re.VERBOSE | re.DOTALL,
)
"""What a shell replaces, or replaces nothing in."""

_QUOTES = re.compile(r"'([^']*)'|\"((?:\\.|[^\"\\])*+)\"|\\(.)", re.DOTALL)
_ARGUMENT = re.compile(rf"(?:{_QUOTES.pattern}|[^\s'\"\\])+", re.DOTALL)
_MAX_FILLED = 1 << 18
"""Characters of a text with its variables filled in."""

_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)
_ELSEWHERE = re.compile(r"\$[\w({@*]|\{\{|`|^%\w")


def is_elsewhere(value: object) -> bool:
    """Whether a value is decided by what nobody knows here: a variable, a template.

    >>> is_elsewhere("${N}"), is_elsewhere("{{ .Values.n }}"), is_elsewhere(8)
    (True, True, False)
    """
    return isinstance(value, str) and _ELSEWHERE.search(value) is not None


# Words


def commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's script, each as its words, still quoted.

    That a command reads a here-document is its word ``<<``. Raises UnreadableError.
    """
    words: list[str] = []
    for token in _TOKEN.finditer(_HERE_DOCUMENT.sub(r"\1", text)):
        kind = token.lastgroup
        if kind == "open":
            raise UnreadableError(f"a {token[0]} that nothing closes", token[0])
        if kind == "end":
            yield words
            words = []
        elif kind == "word":
            words.append(token[0])
        elif kind == "redirect" and "<<" in token[0]:
            words.append("<<")
    yield words


def split(text: str, env: Mapping[str, str]) -> list[str]:
    """Return the words of a text that is not a script: a second command in it is refused."""
    every = [words for words in commands(text) if words]
    if len(every) > 1:
        raise UnreadableError("holds several commands", every[1][0])
    return unquoted(every[0], env) if every else []


def filled(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables that are known; others stay as they are spelled.

    Raises UnreadableError where that would be endless: a variable may double itself.
    """
    if text.count("$") * max(map(len, env.values()), default=0) > _MAX_FILLED:
        raise UnreadableError("its variables grow too long", "$")

    def value_of(match: re.Match[str]) -> str:
        value = env.get(match["a"] or match["b"] or match["c"])
        return value or match["default"] or (match[0] if value is None else "")

    return _VARIABLE.sub(value_of, text)


def unquoted(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the words that a shell makes of quoted ones: a variable may hold several, or none."""

    def replaced(match: re.Match[str]) -> str:
        if match["list"]:
            return env.get(f"{match['list']}[@]", match[0])
        if match["double"] is not None:
            inner = filled(match["double"], env)
            inner = re.sub(r"\\([\"\\$`\n])", r"\1", inner)
            return re.sub(r"(\W)", r"\\\1", inner) or "''"
        if match["output"]:  # nobody knows it: one word
            return re.sub(r"[\s'\"\\]", "", filled(match[0], env))
        return filled(match[0], env) if match["variable"] else match[0]

    text = _QUOTED.sub(replaced, " ".join(words).replace("\\\n", ""))
    if re.search(r"['\"\\]", _ARGUMENT.sub("", text)):
        raise UnreadableError("a quote that nothing closes")
    return [
        _QUOTES.sub(lambda match: match[1] or match[2] or match[3] or "", argument[0])
        for argument in _ARGUMENT.finditer(text)
    ]


# Where vLLM begins


@dataclass(frozen=True)
class Launch:
    """A server of vLLM's among the words that start a process."""

    words: Sequence[str]
    """Its own words."""

    rest: tuple[object, ...] = ()
    """All other words, in order: an edit leaves them alone."""

    image: str = ""


_FOLDER = r"(?:[^\0 ]*/)?"
_PROGRAM = re.compile(
    rf"""(?:{_FOLDER}vllm\0serve
      |{_FOLDER}python[\d.]*\0(?:-[^\0m][^\0]*\0)*
       (?:(?:-m\0vllm(?:\.entrypoints\.cli\.main)?|{_FOLDER}vllm)\0serve
         |-m\0vllm\.entrypoints\.(?:openai\.)?api_server
         |[^\0 ]*vllm/entrypoints/(?:openai/)?api_server\.py))\0""",
    re.VERBOSE,
)
"""What starts a server, its words ended by NUL."""

_MAX_WORDS = 8
"""Of a program that starts one, an interpreter's options with them."""

_SETS = re.compile(r"\w+\+?=.*", re.DOTALL)
_OPTION_OR_AMOUNT = re.compile(r"-.+|(?:0x[\da-f]+|\d[\d.,:-]*)[smhd]?")
_MAY_START = re.compile(rf"{_FOLDER}(?:vllm|python[\d.]*|ba?sh)")


def vllm_in(words: Sequence[str], env: Mapping[str, str], image: str = "") -> Launch | None:
    """Return the server that words start; ``image`` starts them where they are no program.

    >>> vllm_in(["exec", "vllm", "serve", "acme/m"], {}).words
    ['acme/m']
    >>> vllm_in(["gateway", "-poolName", "vllm", "serve"], {}) is None
    True
    """
    at, is_launched = 0, False
    while at < len(words):
        if program := _PROGRAM.match("".join(f"{each}\0" for each in words[at : at + _MAX_WORDS])):
            own = at + program[0].count("\0")
            return Launch(words[own:], tuple(words[:own]))
        name = words[at].rpartition("/")[2]
        for table, find in (("take_texts", _in_text), ("containers", _in_container)):
            if name in FACTS[table]:
                launch = find(words[at:], env)
                return launch and replace(launch, rest=(*words[:at], *launch.rest))
        # a launcher's options, their values and its numbers are passed over
        if name in FACTS["launchers"]:
            is_launched = True
        elif not _SETS.fullmatch(words[at]) and not (
            is_launched
            and (words[at - 1].startswith("-") or _OPTION_OR_AMOUNT.fullmatch(words[at]))
        ):
            break
        at += 3 if words[at : at + 2] == ["exec", "-a"] else 1
    if starts_vllm(image):
        own = int(words[:1] == ["serve"])
        return Launch(words[own:], tuple(words[:own]), image)
    return None


def _in_text(words: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the server that a text starts, which is handed to a shell."""
    is_shell = words[0].endswith("sh") and not words[0].endswith("ssh")
    texts = [b for a, b in pairwise(words) if re.fullmatch(r"-\w*c", a) or not is_shell]
    return next(filter(None, (in_script(text, env) for text in texts if " " in text)), None)


def _in_container(words: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the server that ``docker run`` or ``apptainer exec`` starts: options, many of which
    take a word, an image, and a program where the image starts none."""
    entry = re.findall(r"--entrypoint[= ](\S+)", " ".join(words))
    for at in range(2, len(words)) if {"run", "create", "exec"} & {*words} else ():
        option, image = words[at - 2], words[at - 1]
        is_value = option[:1] == "-" and "=" not in option and option not in FACTS["switches"]
        is_value = is_value and not re.fullmatch("-[dhiPqt]+", option)
        starts = starts_vllm(image) and not is_value
        if starts or _MAY_START.fullmatch(words[at]):
            own = [*entry, *words[at:]] if starts else words[at:]
            if launch := vllm_in(own, env, "" if entry else image):
                return Launch(launch.words, (*words[:at], *launch.rest), launch.image or image)
    return None


def in_script(text: str, env: Mapping[str, str]) -> Launch | None:
    """Return the one server that a shell's script starts. Raises UnreadableError for several."""
    known, launches, rest = dict(env), list[Launch](), list[object]()
    for raw in commands(text):
        only_sets = _assign(raw, known)
        launch = vllm_in(unquoted(raw, known), known)
        if launch is not None and "<<" in raw:
            raise UnreadableError("it reads a here-document", "<<")
        if launch is not None:
            launches.append(launch)
        if not only_sets:
            rest.append(launch.rest if launch else tuple(raw))
    if len(launches) > 1:
        raise UnreadableError(f"it starts {len(launches)} servers of vLLM")
    return replace(launches[0], rest=tuple(rest)) if launches else None


def _assign(raw: Sequence[str], known: dict[str, str]) -> bool:
    """Set the variables that a command begins with, and return whether it does nothing else."""
    for word in raw:
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment is None:
            if word in {"export", "readonly", "local", "declare"} or word.startswith("-"):
                continue
            return False
        name, adds, value = assignment.groups()
        if is_list := value.startswith("("):
            name, items = f"{name}[@]", [w for words in commands(value[1:-1]) for w in words]
        else:
            items = unquoted([value], known)
        value = " ".join(items)
        known[name] = known.get(name, "") + " " * is_list + value if adds else value
    return True


_MAY_BE = re.compile(r"vllm['\",\s\\-]+serve\b|vllm\.entrypoints")


def reading(
    server: Server, raw: str, find: Callable[[], Launch | None], *, is_sure: bool = False
) -> list[Server]:
    """Return the server with what its words say, if they are vLLM's.

    One that ``is_sure``, or looks so in the ``raw`` text, is also returned where it cannot be read,
    with the reason.
    """
    try:
        if (launch := find()) is None:
            return []
        arguments, rest = read_flags(launch.words), (server.rest, launch.rest)
    except (UnreadableError, RecursionError) as problem:  # a script may run itself
        near = getattr(problem, "near", "")
        is_sure = is_sure or _MAY_BE.search(raw) is not None or has_vllms_flag(raw)
        return [replace(server, problem=str(problem), near=near)] if is_sure else []
    image = launch.image or server.image
    return [replace(server, arguments=arguments, words=launch.words, rest=rest, image=image)]


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
        is_switch = is_off or name in NO_WORD
        value = not is_off if is_switch else _value(word, name, inline, rest)
        # what is there twice is kept as both, so that neither can change unseen
        arguments[name] = [arguments[name], value] if name in arguments else value
    if "model" not in arguments and "model_id" in arguments:
        arguments["model"] = arguments["model_id"]
    elif "model" not in arguments and free:
        arguments["model"] = free.pop(0)
    for word in free:
        what = "may hold more flags" if is_elsewhere(word) else "is no flag and no flag's value"
        raise UnreadableError(f"{word[:40]} {what}", word)
    if "config" in arguments:
        raise UnreadableError("another file decides: --config", "config")
    return arguments


def _flag(word: str) -> tuple[str, bool, list[str]]:
    """Return the argument that a flag names, whether it switches it off, and the value in it; no
    name where the word is no flag."""
    flag, equals, inline = word.partition("=")
    value = [inline] if equals else []
    if flag in SHORT:
        return SHORT[flag], False, value
    if level := re.fullmatch(r"-O([^.=].*)", word):
        return "optimization_level", False, [level[1]]
    if re.fullmatch(r"-[a-zA-Z]+", word):
        raise UnreadableError(f"{word} is no flag of vLLM", word)
    return (*(canonical(flag[2:]) if re.match(r"--.|-O.", word) else ("", False)), value)


def _value(word: str, name: str, values: list[str], rest: deque[str]) -> ArgumentValue:
    """Return the value of a flag, and take it from the words behind where it is not in the flag."""
    takes, is_inline = TAKES.get(name), bool(values)
    while not is_inline and rest and (takes == "words" or not values):
        if rest[0].startswith("-") and not re.fullmatch(r"-\d[\d.]*", rest[0]):
            break
        values.append(rest.popleft())
    if takes == "words":
        return [typed(each) for each in values]
    if takes == "word" and not values:
        raise UnreadableError(f"{word} has no value", word)
    return typed(values[0]) if values else None
