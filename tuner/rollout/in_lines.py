"""Servers in files of lines: units, supervisor's programs, variables, scripts, Dockerfiles."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tuner.rollout import known
from tuner.rollout.server import Item, Server, Span
from tuner.rollout.words import (
    Found,
    UnreadableError,
    commands,
    in_script,
    split,
    told,
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
    found = list[Server]()
    section, image, env, env_spans = "", "", dict[str, str](), list[Span]()
    settings = list(_SETTING.finditer(text))
    for each in settings:
        key, value = each["key"], _JOINED.sub(" ", each["value"] or "")
        if key in {"Environment", "environment"}:
            pairs = [word for raw in commands(value) for one in raw for word in unquoted(one, {})]
            env |= {name: v for name, _, v in (pair.partition("=") for pair in pairs)}
            env_spans.append(each.span("value"))
        elif key == "Image":
            image = value
    for each in settings:
        section = each["section"] or section
        if each["key"] not in _STARTS:
            continue
        if not each["value"]:
            found.clear()  # an empty one takes back those above it
            continue
        spans = [each.span("value"), *env_spans]
        raw = _JOINED.sub(" ", each["value"])
        if each["key"] == "ExecStart":
            raw = raw.lstrip("-@:+!|")
        name = section.rpartition(":")[2] if ":" in section else each["key"]
        server = _server(name, spans, raw, partial(_of_unit, raw, env, image))
        if server is not None:
            unused = {key: value for key, value in env.items() if key not in raw}
            found.append(replace(server, rest=(server.rest, unused, _without(text, spans))))
    return found


def _without(text: str, spans: Sequence[Span]) -> list[str]:
    """Return the text beside a command and the variables that it may use."""
    ends = [0, *(place for span in sorted(spans) for place in span), len(text)]
    return [text[ends[n] : ends[n + 1]] for n in range(0, len(ends), 2)]


def _of_unit(raw: str, env: Mapping[str, str], image: str) -> Found | None:
    words = split(raw.replace("$$", "\0"), env)
    return vllm_in([word.replace("\0", "$").replace("%%", "%") for word in words], env, image)


def _server(
    name: str, spans: Sequence[Span], raw: str, find: Callable[[], Found | None]
) -> Server | None:
    """Return the server that a text starts; None where it starts none, or nothing of vLLM's."""
    try:
        found = find()
        if found is None:
            return None
        said = told(found.words)
    except UnreadableError as problem:
        if not _MAY_BE.search(raw):
            return None
        why, near = str(problem), problem.near
        return Server(name=name, proof="vllm", spans=spans, problem=why, near=near)
    return Server(
        name=name,
        told=said,
        proof=found.proof or (known.proof(said) and f"its flag {known.proof(said)}"),
        spans=spans,
        words=found.words,
        rest=found.rest,
        image=found.image,
    )


def in_variables(text: str) -> list[Server]:
    """Return the servers whose flags a file of variables holds."""
    found, each_line = list[Server](), list(_VARIABLE.finditer(text))
    names = [each["name"] for each in each_line]
    for each in each_line:
        name, (begin, end) = each["name"], each.span("value")
        is_quoted = _QUOTED.fullmatch(each["value"]) is not None
        span = (begin + is_quoted, end - is_quoted)
        value = text[slice(*span)]
        if not re.search(r"--[a-z]|vllm serve", value):
            continue

        def find(value: str = value, name: str = name, *, is_quoted: bool = is_quoted) -> Found:
            if not is_quoted and re.search(r"['\"]|\s#", value):
                raise UnreadableError("its quotes or its comment are read differently", value[:9])
            if names.count(name) > 1:
                raise UnreadableError(f"{name} is set a second time", f"{name}=")
            words = split(value, {})
            return vllm_in(words, {}) or Found(words, "")

        server = _server(name, [span], value, find)
        if server is not None and server.proof:
            rest = (text[: span[0]], text[span[1] :], server.rest)
            found.append(replace(server, rest=rest))
    return found


def in_shell(text: str) -> list[Server]:
    """Return the server that a script starts."""
    server = _server("script", [(0, len(text))], text, lambda: in_script(text, {}))
    return [server] if server else []


def in_dockerfile(text: str) -> list[Server]:
    """Return the server that a Dockerfile's image starts."""
    image = (re.findall(r"(?mi)^FROM\s+(\S+)", text) or [""])[-1]
    said = dict[str, re.Match[str]]()
    for each in re.finditer(r"(?mi)^(ENTRYPOINT|CMD)[ \t]+((?:\\\r?\n|[^\n])*?)[ \t\r]*$", text):
        said[each[1].upper()] = each
    words, items = list[str](), list[Item]()
    for key in ("ENTRYPOINT", "CMD"):
        if key in said:
            begin, raw = said[key].start(2), said[key][2]
            if not raw.startswith("["):
                shell = _server("image", [said[key].span(2)], raw, partial(in_script, raw, {}))
                rest = (text[:begin], text[said[key].end(2) :])
                return [replace(shell, rest=(rest, shell.rest))] if shell else []
            words += [str(word) for word in json.loads(_JOINED.sub(" ", raw))]
            items = [
                Item((begin + one.start(), begin + one.end()), '"')
                for one in re.finditer(r'"(?:\\.|[^"\\])*"', raw)
            ]
    found = vllm_in(words, {}, "" if "ENTRYPOINT" in said else image)
    if found is None or not items:
        return []
    spans = [said[key].span(2) for key in ("CMD", "ENTRYPOINT") if key in said]
    outside = (text[: min(spans)[0]], text[max(spans)[1] :])
    return [
        Server(
            name="image",
            told=told(found.words),
            proof=found.proof,
            spans=spans,
            form="list",
            words=found.words,
            items=items,
            is_flow=True,
            rest=(outside, found.rest),
            image=image,
        )
    ]
