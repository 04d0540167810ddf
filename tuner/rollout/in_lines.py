"""Servers in files of lines: units, supervisor's programs, variables, scripts."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tuner.rollout.server import Server, Span
from tuner.rollout.words import (
    Launch,
    UnreadableError,
    in_script,
    reading,
    split,
    unquoted_words,
    vllm_in,
)

_JOINED = re.compile(r"\\\r?\n(?:[ \t]*[#;][^\n]*\n)*")
_SETTING = re.compile(
    r"^[ \t]*(?:\[(?P<section>[^\]\n]+)\]|(?P<key>\w+)[ \t]*=[ \t]*"
    rf"(?P<value>(?:{_JOINED.pattern}|[^\n])*?))[ \t\r]*$",
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
            pairs = [word.partition("=") for word in unquoted_words(value, {})]
            env |= {name: value for name, _, value in pairs}
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
        server = Server(name=name, spans=[each.span("value"), *env_spans], rest=unused)
        servers += _read(server, raw, partial(_of_unit, raw, env, image))
    return servers


def _of_unit(raw: str, env: dict[str, str], image: str) -> Launch | None:
    words = split(raw.replace("$$", "\0"), env)
    return vllm_in([word.replace("\0", "$").replace("%%", "%") for word in words], env, image)


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
            server, find = Server(name=name, spans=[span]), partial(_of_variable, value, why, name)
            servers += [replace(each, is_proven=True) for each in _read(server, value, find)]
    return servers


def _of_variable(value: str, why: str, name: str) -> Launch:
    if why:
        raise UnreadableError(why, f"{name}=")
    words = split(value, {})
    return vllm_in(words, {}) or Launch(words, is_proven=False)


def in_shell(text: str) -> list[Server]:
    """Return the server that a script starts."""
    server = Server(name="script", spans=[(0, len(text))])
    return _read(server, text, partial(in_script, text, {}))


def _read(server: Server, raw: str, find: Callable[[], Launch | None]) -> list[Server]:
    read = reading(server, find, is_sure=_MAY_BE.search(raw) is not None)
    return [] if read is None else [read]
