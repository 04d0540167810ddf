"""Whatever stands in a file, and however it is spelt: the laws that hold for every kind."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.support.targets import write
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import SWITCHES
from tuner.errors import TargetError
from tuner.rollout.targets.kinds import (
    compose,
    env,
    helm_llm_d,
    helm_production_stack,
    kserve,
    kubernetes,
    kustomize,
    systemd,
)
from tuner.rollout.targets.server import Target

# How a server's flags may be spelt before the profile is applied.

_TEXT = st.text(alphabet="ab1 '\"$%#\\{}:,&;|*`!@=-~é()", max_size=8)
_OURS: dict[str, st.SearchStrategy[ArgumentValue]] = {
    "max_num_seqs": st.integers(1, 512),
    "gpu_memory_utilization": st.sampled_from([0.3, 0.5, 0.92]),
    "enable_prefix_caching": st.booleans(),
    "tokenizer": _TEXT.filter(lambda text: not text.startswith("-")),
    "hf_overrides": st.dictionaries(_TEXT, st.integers() | _TEXT, max_size=2),
    "cudagraph_capture_sizes": st.lists(st.integers(1, 9), min_size=1, max_size=3),
}
_OTHERS = ["--port", "--api-key=s$ cr'et", "--trust-remote-code", "--served_model_name", "-asc"]


def spelt(name: str, value: ArgumentValue, *, hyphens: bool, inline: bool) -> list[str]:
    """Return the words of one flag."""
    flag = f"--{name.replace('_', '-') if hyphens else name}"
    if isinstance(value, bool):
        return [flag if value else f"--no{flag[1:2] if hyphens else '_'}{flag[2:]}"]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return [f"{flag}={text}"] if inline else [flag, text]


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    """Return a model and flags, each at most once."""
    found = ["acme/m"]
    for name in draw(st.lists(st.sampled_from([*_OURS, *_OTHERS]), unique=True, max_size=7)):
        if name in _OURS:
            value = draw(_OURS[name])
            found += spelt(name, value, hyphens=draw(st.booleans()), inline=draw(st.booleans()))
        else:
            found.append(name)
            takes_value = "=" not in name and name != "--trust-remote-code"
            found += [draw(st.sampled_from(["8", "a b", "#x", "it's"]))] if takes_value else []
    return found


def meaning(found: list[str]) -> dict[str, object]:
    """Read flags the way argparse does, without the code under test."""
    result: dict[str, object] = {"model": found[0]}
    at = 1
    while at < len(found):
        flag, equals, inline = found[at].partition("=")
        name = flag.lstrip("-").replace("-", "_")
        at += 1
        if name.removeprefix("no_") in SWITCHES:
            result[name.removeprefix("no_")] = not name.startswith("no_")
        elif equals:
            result[name] = [inline] if name == "cudagraph_capture_sizes" else inline
        else:
            end = at + 1
            while name == "cudagraph_capture_sizes" and end < len(found) and found[end][0] != "-":
                end += 1
            result[name] = found[at:end] if name == "cudagraph_capture_sizes" else found[at]
            at = end
    return result


def wanted(before: list[str], arguments: Mapping[str, ArgumentValue]) -> dict[str, object]:
    result = meaning(before)
    for name, value in arguments.items():
        if isinstance(value, bool):
            result[name] = value
        elif isinstance(value, list):
            result[name] = [str(one) for one in value]
        else:
            result[name] = json.dumps(value) if isinstance(value, dict) else str(value)
    return {name: _loaded(name, value) for name, value in result.items()}


def _loaded(name: str, value: object) -> object:
    if name == "hf_overrides" and isinstance(value, str):
        return json.loads(value)
    return float(value) if name == "gpu_memory_utilization" and isinstance(value, str) else value


# The kinds of file, and how their own programs would read them.


@dataclass(frozen=True)
class Kind:
    target: Target
    write: Callable[[st.DrawFn, list[str]], str]
    read: Callable[[str], list[str]]
    bounds: tuple[str, str]
    """What stands before and behind the command line."""

    container: str | None = None


def _scalar(draw: st.DrawFn, text: str, *, margin: str) -> str:
    """Write a text as YAML in any style that can hold it."""
    style = draw(st.sampled_from([None, "'", '"', "|", ">"]))
    width = draw(st.sampled_from([20, 999]))
    for one in (style, '"'):  # PyYAML loses blanks in some folded texts
        written = yaml.dump({"k": text}, default_style=one, allow_unicode=True, width=width)
        body = written.partition(":")[2].strip(" ").rstrip("\n").replace("\n", f"\n{margin}")
        if yaml.safe_load(f"k:\n{margin}- {body}\n") == {"k": [text]}:
            return body
    raise AssertionError(text)


def _list(draw: st.DrawFn, found: list[str], *, margin: str) -> str:
    comments = st.sampled_from(["", "  # why", ""])
    if draw(st.booleans()):
        flow = yaml.safe_dump(found, default_flow_style=True, width=999, allow_unicode=True)
        return " " + flow.strip() + draw(comments) + "\n"
    lines = [f"{margin}# first\n"]
    for word in found:
        quotes = draw(st.sampled_from([None, "'", '"']))
        one = yaml.dump([word], default_style=quotes, width=999, allow_unicode=True).rstrip("\n")
        lines.append(margin + one + draw(comments) + "\n")
    return "\n" + "".join(lines)


POD = """\
# the workload
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: llm}   # and its name
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:latest
%s
        ports: [{containerPort: 8000}]
      - {name: sidecar, image: envoy, args: ["--max-num-seqs=1"]}
---
kind: Service
"""


def _pod(text: str) -> dict[str, list[str]]:
    document = next(iter(yaml.safe_load_all(text)))
    found = document["spec"]["template"]["spec"]["containers"][0]
    assert isinstance(found, dict)
    return found


def _kubernetes_list(draw: st.DrawFn, found: list[str]) -> str:
    escaped = _escaped(found)
    return POD % f"        args:{_list(draw, escaped, margin=' ' * 8)}"


def _in_shell(script: str) -> list[str]:
    """Return what a real shell hands to ``vllm``."""
    code = f"vllm() {{ shift; printf '%s\\0' \"$@\"; }}\n{script}"
    done = subprocess.run(["sh", "-c", code], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def _shell_line(draw: st.DrawFn, found: list[str]) -> str:
    between = draw(st.sampled_from([" ", "  ", " \\\n  "]))
    before = draw(st.sampled_from(["", "exec ", "set -e\n", "true && ", "A=1 "]))
    after = draw(st.sampled_from(["", " 2>/dev/null", " || exit 1", "\n"]))
    line = between.join(["vllm", "serve", *map(shlex.quote, found)])
    return (before + line + after).replace("exec vllm", "vllm")


def _kubernetes_script(draw: st.DrawFn, found: list[str]) -> str:
    [line] = _escaped([_shell_line(draw, found)])
    script = _scalar(draw, line, margin=" " * 8)
    return POD % f'        command: ["sh", "-c"]\n        args:\n        - {script}'


def _compose_text(draw: st.DrawFn, found: list[str]) -> str:
    text = " ".join(shlex.quote(word) for word in found).replace("$", "$$")
    body = _scalar(draw, text, margin="    ")
    return (
        "# c\nservices:\n  a: {image: b}\n  vllm:\n    image: vllm/vllm-openai\n"
        f"    command: {body}\n    # end\n"
    )


def _compose_words(text: str) -> list[str]:
    return shlex.split(yaml.safe_load(text)["services"]["vllm"]["command"].replace("$$", "$"))


def _compose_nested(draw: st.DrawFn, found: list[str]) -> str:
    line = re.sub(r'(["\\])', r"\\\1", _shell_line(draw, found)).replace("$", "$$")
    script = f'"{line}"'
    body = _scalar(draw, f"sh -c {script}", margin="    ")
    return f"services:\n  vllm:\n    command: {body}\n    restart: always # x\n"


def _llm_d(draw: st.DrawFn, found: list[str]) -> str:
    escaped = _escaped(found)
    body = _list(draw, escaped, margin="    ")
    return (
        "# v\ndecode:\n  containers:\n  - name: vllm\n    modelCommand: custom\n"
        f"    command: [vllm, serve]\n    args:{body}prefill: {{create: false}}\n"
    )


def _llm_d_words(text: str) -> list[str]:
    found = yaml.safe_load(text)["decode"]["containers"][0]["args"]
    return _unescaped(found)


def _patch(draw: st.DrawFn, found: list[str]) -> str:
    escaped = _escaped(found)
    body = _list(draw, escaped, margin="  ")
    return f"# p\n- op: replace\n  path: /spec/template/spec/containers/0/args\n  value:{body}"


def _kserve(draw: st.DrawFn, found: list[str]) -> str:
    escaped = _escaped(found)
    body = _list(draw, escaped, margin=" " * 6)
    return (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\n"
        "spec:\n  predictor:\n    canaryTrafficPercent: 10  # slowly\n    containers:\n"
        f"    - name: kserve-container\n      args:{body}      image: vllm/vllm-openai\n"
    )


def _unit(draw: st.DrawFn, found: list[str]) -> str:
    between = draw(st.sampled_from([" ", " \\\n    ", " \\\n# note\n  "]))
    quoted = [_in_systemd_quotes(word) for word in found]
    line = between.join(["/opt/vllm", "serve", *quoted])
    return f"[Unit]\nDescription=x\n\n[Service]\nExecStart={line}\nRestart=always\n"


def _in_systemd_quotes(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'.replace("$", "$$").replace("%", "%%")


def _unit_words(text: str) -> list[str]:
    """Split as systemd documents it: quotes, C escapes, doubled $ and %."""
    value = text.partition("ExecStart=")[2].partition("\nRestart")[0]
    lines = [line for line in value.split("\n") if not line.startswith("#")]
    joined = " ".join(line.removesuffix("\\") for line in lines)
    found = re.findall(r"""(?:[^\s"\\]|"(?:\\.|[^"\\])*")+""", joined)
    bare = [re.sub(r"""(?<!\\)((?:\\\\)*)\"""", r"\1", word) for word in found]
    plain = [
        re.sub(r"\\(x09|.)", lambda m: "\t" if m[1] in ("t", "x09") else m[1], w) for w in bare
    ]
    return [word.replace("$$", "$").replace("%%", "%") for word in plain][2:]


def _escaped(words_: list[str]) -> list[str]:
    return [re.sub(r"\$(?=[$(])", "$$", word) for word in words_]


def _unescaped(words_: list[str]) -> list[str]:
    return [word.replace("$$", "$") for word in words_]


KINDS = {
    "kubernetes-list": Kind(
        kubernetes,
        _kubernetes_list,
        lambda text: _unescaped(_pod(text)["args"]),
        ("args:", "        ports:"),
    ),
    "kubernetes-script": Kind(
        kubernetes,
        _kubernetes_script,
        lambda text: _in_shell(_pod(text)["args"][0].replace("$$", "$")),
        ("args:", "        ports:"),
    ),
    "compose-text": Kind(
        compose, _compose_text, _compose_words, ("command:", "    # end"), container="vllm"
    ),
    "compose-script": Kind(
        compose,
        _compose_nested,
        lambda text: _in_shell(_compose_words(text)[2]),
        ("command:", "    restart:"),
    ),
    "helm-llm-d": Kind(helm_llm_d, _llm_d, _llm_d_words, ("args:", "prefill:")),
    "kustomize": Kind(
        kustomize,
        _patch,
        lambda text: _unescaped(yaml.safe_load(text)[0]["value"]),
        ("value:", ""),
        container="containers/0",
    ),
    "kserve": Kind(
        kserve,
        _kserve,
        lambda text: _unescaped(yaml.safe_load(text)["spec"]["predictor"]["containers"][0]["args"]),
        ("args:", "      image:"),
    ),
    "systemd": Kind(systemd, _unit, _unit_words, ("ExecStart=", "\nRestart=")),
}


def edit(kind: Kind, text: str, arguments: Mapping[str, ArgumentValue]) -> str:
    """Edit, or forget the example where a plain YAML text cannot hold a value: that is refused."""
    try:
        return write(kind.target, text, arguments, container=kind.container, trusted=True)
    except TargetError as problem:
        assume("cannot be edited safely (f:" not in str(problem))
        raise


@st.composite
def cases(draw: st.DrawFn, kind: Kind) -> tuple[list[str], str, dict[str, ArgumentValue]]:
    """Return words, a file with them, and the arguments to apply."""
    before = draw(words())
    return before, kind.write(draw, before), {name: draw(one) for name, one in _OURS.items()}


@pytest.mark.parametrize("name", KINDS)
@settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # a real shell reads each: too slow to shrink
)
@given(data=st.data())
def test_the_flags_are_as_asked_for_and_nothing_else_changes(
    name: str, data: st.DataObject
) -> None:
    kind = KINDS[name]
    before, text, arguments = data.draw(cases(kind))
    assert kind.read(text) == before
    result = edit(kind, text, arguments)
    found = {key: _loaded(key, value) for key, value in meaning(kind.read(result)).items()}
    assert found == wanted(before, arguments)
    assert edit(kind, result, arguments) == result
    assert around(kind, result) == around(kind, text)


def around(kind: Kind, text: str) -> tuple[str, str]:
    """Return what stands before and behind the command line, byte for byte."""
    first, last = kind.bounds
    begin = text.index(first) + len(first)
    return text[:begin], text[text.rindex(last) if last else len(text) :]


# The two kinds that hold less than any word, or something else than words.

_PLAIN: dict[str, st.SearchStrategy[ArgumentValue]] = {
    "max_num_seqs": st.integers(1, 512),
    "gpu_memory_utilization": st.sampled_from([0.3, 0.5, 0.92]),
    "enable_prefix_caching": st.booleans(),
    "tokenizer": st.sampled_from(["acme/t", "t-1.0", "@a:b"]),
    "cudagraph_capture_sizes": st.lists(st.integers(1, 9), min_size=1, max_size=3),
}


@st.composite
def plain_words(draw: st.DrawFn) -> list[str]:
    found = ["acme/m"]
    for name in draw(st.lists(st.sampled_from([*_PLAIN, "--port=8"]), unique=True, max_size=5)):
        found += (
            spelt(name, draw(_PLAIN[name]), hyphens=draw(st.booleans()), inline=draw(st.booleans()))
            if name in _PLAIN
            else [name]
        )
    return found


@settings(deadline=None, max_examples=40)
@given(
    before=plain_words(),
    after=st.fixed_dictionaries(_PLAIN),
    export=st.sampled_from(["", "export ", "  "]),
    quotes=st.sampled_from(["'", '"', ""]),
    between=st.sampled_from([" ", "  ", "\t"]),
    ends=st.sampled_from(["\n", "\r\n"]),
)
def test_a_variable_is_as_asked_for_and_nothing_else_changes(  # noqa: PLR0913, PLR0917 - drawn
    before: list[str],
    after: dict[str, ArgumentValue],
    export: str,
    quotes: str,
    between: str,
    ends: str,
) -> None:
    head, tail = f"# why{ends}A='x y'{ends}{export}VLLM_ARGS=", f"{ends}B=${{A}}{ends}#"
    text = f"{head}{quotes}{between.join(before)}{quotes}{tail}"
    result = write(env, text, after, container="VLLM_ARGS", trusted=True)
    assert result.startswith(head)
    assert result.endswith(tail)
    found = meaning(result[len(head) : -len(tail)].strip("'\"").split())
    assert {key: _loaded(key, value) for key, value in found.items()} == wanted(before, after)
    assert write(env, result, after, container="VLLM_ARGS", trusted=True) == result


_OF_THE_CHART: dict[str, st.SearchStrategy[ArgumentValue]] = {
    "max_num_seqs": st.integers(1, 512),
    "max_model_len": st.integers(1, 10**7),
    "gpu_memory_utilization": st.sampled_from([0.3, 0.92]),
    "enable_prefix_caching": st.booleans(),
    "enable_chunked_prefill": st.booleans(),
    "seed": st.integers(0, 9),
    "tokenizer": _TEXT.filter(lambda text: not text.startswith("-")),
}


def by_the_chart(text: str) -> dict[str, object]:
    """Return the arguments that the chart's template hands to vLLM; extraArgs come last."""
    config = yaml.safe_load(text)["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]
    keys = {key: name for name, key in helm_production_stack.KEYS.items()}
    found: dict[str, object] = {"enable_prefix_caching": False}
    found |= {keys[key]: value for key, value in config.items() if key in keys}
    extra = meaning(["m", *_unescaped(config.get("extraArgs", []))])
    return {name: str(value) for name, value in {**found, **extra}.items() if name != "model"}


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_values_of_the_chart_are_as_asked_for_and_nothing_else_changes(data: st.DataObject) -> None:
    in_keys = data.draw(st.lists(st.sampled_from([*helm_production_stack.KEYS]), unique=True))
    some = {name: data.draw(one) for name, one in _OF_THE_CHART.items() if name in in_keys}
    lines = [
        f"      {helm_production_stack.KEYS[name]}: {json.dumps(value)}  # {name}\n"
        for name, value in some.items()
    ]
    extra = data.draw(st.sampled_from(["", "      extraArgs: [--port=8]\n"]))
    head = "# values\nservingEngineSpec:\n  modelSpec:\n  - name: a\n    vllmConfig:\n"
    head += "      v1: 1 # the chart's\n"
    tail = "    modelURL: m # why\n  runtimeClassName: ''\n"
    text = head + "".join(lines) + extra + tail
    after = {name: data.draw(one) for name, one in _OF_THE_CHART.items()}
    try:
        result = write(helm_production_stack, text, after, source="f")
    except TargetError as problem:
        assume("cannot be edited safely (f:" not in str(problem))
        raise
    assert result.startswith(head)
    assert result.endswith(tail)
    expected = {**by_the_chart(text), **{name: str(value) for name, value in after.items()}}
    assert by_the_chart(result) == expected
    assert write(helm_production_stack, result, after, source="f") == result


def test_a_variable_carries_only_what_needs_no_quotes() -> None:
    text = 'A=1\nVLLM_ARGS="acme/m --port 8"\n'
    assert write(env, text, {"max_num_seqs": 16}, container="VLLM_ARGS", trusted=True) == (
        'A=1\nVLLM_ARGS="acme/m --port 8 --max-num-seqs 16"\n'
    )
    with pytest.raises(TargetError, match="a variable cannot carry"):
        write(env, text, {"hf_overrides": {"a": 1}}, container="VLLM_ARGS", trusted=True)
