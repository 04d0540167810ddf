"""Servers in files of lines: units, supervisor's programs, variables, scripts."""

import re
from functools import partial

from tuner.rollout.known import has_vllms_flag
from tuner.rollout.server import Server
from tuner.rollout.words import Launch, in_script, reading, split, unquoted, vllm_in

_JOINED = re.compile(r"\\\r?\n(?:[ \t]*[#;][^\n]*\n)*")
_SETTING = re.compile(
    r"^[ \t]*(?:\[(?P<section>[^\]\n]+)\]|(?P<key>\w+)[ \t]*=[ \t]*"
    rf"(?P<value>(?:{_JOINED.pattern}|[^\n])*?))[ \t\r]*$",
    re.MULTILINE,
)
VARIABLE = re.compile(
    r"^\ufeff?[ \t]*(?:export[ \t]+)?(?P<name>\w+)=(?P<quote>['\"]?)(?P<value>[^\n]*?)(?P=quote)"
    r"[ \t\r]*$",
    re.MULTILINE,
)


def in_unit(text: str) -> list[Server]:
    """Return the servers of a systemd unit, a quadlet, or a config of supervisor."""
    servers, name, image = list[Server](), "", ""
    settings = [each for each in _SETTING.finditer(text) if each["key"]]
    sets = [each for each in settings if each["key"] in {"Environment", "environment"}]
    words = [word for each in sets for word in unquoted([_joined(each)], {})]
    env = {name: value for name, _, value in (word.partition("=") for word in words)}
    for each in _SETTING.finditer(text):
        raw = _joined(each)
        if each["section"]:
            name = each["section"].rpartition(":")[2]
        elif each["key"] == "Image":
            image = raw
        elif each["key"] in {"ExecStart", "Exec", "command"} and not raw:
            servers.clear()  # an empty one takes back those above it
        elif each["key"] in {"ExecStart", "Exec", "command"}:
            spans = [each.span("value"), *(setting.span("value") for setting in sets)]
            unused = {key: value for key, value in env.items() if key not in raw}
            server = Server(name=name, spans=spans, rest=unused)
            command = raw if raw.startswith("--") else raw.lstrip("-@:+!|")
            find = partial(_of_unit, command, env, image)
            servers += reading(server, raw, find)
    return servers


def _joined(setting: re.Match[str]) -> str:
    return _JOINED.sub(" ", setting["value"] or "")


def _of_unit(raw: str, env: dict[str, str], image: str) -> Launch | None:
    words = split(raw.replace("$$", "\0"), env)
    return vllm_in([word.replace("\0", "$").replace("%%", "%") for word in words], env, image)


def in_variables(text: str) -> list[Server]:
    """Return the servers whose flags a file of variables holds."""
    servers, lines = list[Server](), list(VARIABLE.finditer(text))
    names = [each["name"] for each in lines]
    for each in lines:
        name, value = each["name"], each["value"]
        is_odd = re.search(each["quote"] or r"['\"]|\s#", value)
        why = "its quotes or its comment are read differently" if is_odd else ""
        why = f"{name} is set a second time" if names.count(name) > 1 else why
        server = Server(name=name, spans=[each.span("value")], problem=why, near=f"{name}=")
        servers += reading(server, value, partial(_of_variable, value))
    return servers


def _of_variable(value: str) -> Launch | None:
    words = split(value, {})
    return vllm_in(words, {}) or (Launch(words) if has_vllms_flag(value) else None)


def in_shell(text: str) -> list[Server]:
    """Return the server that a script starts."""
    server = Server(name="script", spans=[(0, len(text))])
    return reading(server, text, partial(in_script, text, {}))
