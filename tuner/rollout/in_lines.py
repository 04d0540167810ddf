"""Servers in files of lines: units, supervisor's programs, variables, scripts."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tuner.rollout import known
from tuner.rollout.server import End, Server, Span
from tuner.rollout.words import (
    Found,
    UnreadableError,
    commands,
    in_script,
    read_flags,
    split,
    unquoted,
    vllm_in,
)

_JOINED = re.compile(r"\\\r?\n(?:[ \t]*[#;][^\n]*\n)*")
_SETTING = re.compile(
    r"^[ \t]*(?:\[(?P<section>[^\]\n]+)\]|(?P<key>\w+)[ \t]*=[ \t]*"
    r"(?P<value>(?:\\\r?\n(?:[ \t]*[#;][^\n]*\n)*|[^\n])*?))[ \t\r]*$",
    re.MULTILINE,
)
_STARTS = {"ExecStart", "Exec", "command"}
_VARIABLE = re.compile(
    r"^\ufeff?[ \t]*(?:export[ \t]+)?(?P<name>\w+)=(?P<value>[^\n]*?)[ \t\r]*$", re.MULTILINE
)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_MAY_BE = re.compile(r"vllm[\"',\s]+serve\b|vllm\.entrypoints|--max[-_]num[-_]seqs")


def in_unit(text: str) -> list[Server]:
    """Return the servers of a systemd unit, a quadlet, or a config of supervisor."""
    servers, section, image = list[Server](), "", ""
    env, env_spans = dict[str, str](), list[Span]()
    settings = list(_SETTING.finditer(text))
    for each in settings:
        value = _JOINED.sub(" ", each["value"] or "")
        if each["key"] in {"Environment", "environment"}:
            words = [bare for raw in commands(value) for one in raw for bare in unquoted(one, {})]
            env |= {name: v for name, _, v in (pair.partition("=") for pair in words)}
            env_spans.append(each.span("value"))
        elif each["key"] == "Image":
            image = value
    for each in settings:
        section = each["section"] or section
        if each["key"] not in _STARTS:
            continue
        if not each["value"]:
            servers.clear()  # an empty one takes back those above it
            continue
        raw = _JOINED.sub(" ", each["value"])
        raw = raw.lstrip("-@:+!|") if each["key"] == "ExecStart" else raw
        name = section.rpartition(":")[2] if ":" in section else each["key"]
        unused = {key: value for key, value in env.items() if key not in raw}
        spans = [each.span("value"), *env_spans]
        servers += _server(name, text, spans, raw, partial(_of_unit, raw, env, image), unused)
    return servers


def _of_unit(raw: str, env: dict[str, str], image: str) -> Found | None:
    words = split(raw.replace("$$", "\0"), env)
    return vllm_in([word.replace("\0", "$").replace("%%", "%") for word in words], env, image)


def _server(  # noqa: PLR0913, PLR0917 - what is read, and how
    name: str,
    text: str,
    spans: Sequence[Span],
    raw: str,
    find: Callable[[], Found | None],
    more: object = None,
) -> list[Server]:
    """Return the server that a part of the text starts; none where that is nothing of vLLM's."""
    server = Server(name=name, spans=spans, ends=[End("text", each) for each in spans])
    try:
        found = find()
        arguments = read_flags(found.words) if found else {}
    except UnreadableError as problem:
        unread = replace(server, proof="vllm", problem=str(problem), near=problem.near)
        return [unread] if _MAY_BE.search(raw) else []
    if found is None:
        return []
    flag = known.proof(arguments)
    return [
        replace(
            server,
            arguments=arguments,
            proof=found.proof or (flag and f"its flag {flag}"),
            words=found.words,
            image=found.image,
            rest=lambda: (found.rest, more, _without(text, spans)),
        )
    ]


def _without(text: str, spans: Sequence[Span]) -> list[str]:
    """Return the text beside a command and the variables that it may use."""
    ends = [0, *(place for span in sorted(spans) for place in span), len(text)]
    return [text[ends[n] : ends[n + 1]] for n in range(0, len(ends), 2)]


def in_variables(text: str) -> list[Server]:
    """Return the servers whose flags a file of variables holds."""
    servers, lines = list[Server](), list(_VARIABLE.finditer(text))
    names = [each["name"] for each in lines]
    for each in lines:
        name, (begin, end) = each["name"], each.span("value")
        is_quoted = _QUOTED.fullmatch(each["value"]) is not None
        span = (begin + is_quoted, end - is_quoted)
        value = text[slice(*span)]
        if re.search(r"--[a-z]|vllm serve", value):
            is_odd = not is_quoted and re.search(r"['\"]|\s#", value) is not None
            why = "its quotes or its comment are read differently" if is_odd else ""
            why = why or (f"{name} is set a second time" if names.count(name) > 1 else "")
            servers += _server(name, text, [span], value, partial(_of_variable, value, why, name))
    return [each for each in servers if each.proof]


def _of_variable(value: str, why: str, name: str) -> Found:
    if why:
        raise UnreadableError(why, f"{name}=")
    words = split(value, {})
    return vllm_in(words, {}) or Found(words, "")


def in_shell(text: str) -> list[Server]:
    """Return the server that a script starts."""
    return _server("script", text, [(0, len(text))], text, partial(in_script, text, {}))
