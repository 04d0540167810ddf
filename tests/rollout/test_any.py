"""Any command line in any of six shapes: what a real shell, vLLM and Compose read after an edit."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.scraped import binary
from tuner.engines.seam import ArgumentValue
from tuner.rollout.edit import edited
from tuner.rollout.find import servers
from tuner.rollout.server import Server
from tuner.rollout.words import vllm_in

OURS: dict[str, st.SearchStrategy[ArgumentValue]] = {
    "max_num_seqs": st.integers(1, 512),
    "gpu_memory_utilization": st.sampled_from([0.3, 0.5, 0.92]),
    "enable_prefix_caching": st.booleans(),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
}
OTHERS = ["--port", "--api-key=s$ cr'et", "--trust-remote-code", "--served_model_name", "-asc"]
ODD = st.sampled_from(["8", "a b", "#x", "it's", "8.5", "16"])


def spelled(name: str, value: ArgumentValue, *, hyphens: bool, inline: bool) -> list[str]:
    """Return the words of one flag."""
    flag = f"--{name.replace('_', '-') if hyphens else name}"
    if isinstance(value, bool):
        return [flag if value else f"--no{'-' if hyphens else '_'}{flag[2:]}"]
    return [f"{flag}={value}"] if inline else [flag, str(value)]


@st.composite
def lines(draw: st.DrawFn, others: Sequence[str] = OTHERS) -> list[str]:
    """Return a model and flags, each at most once."""
    result = ["acme/m"]
    for name in draw(st.lists(st.sampled_from([*OURS, *others]), unique=True, max_size=7)):
        if name in OURS:
            value, styles = draw(OURS[name]), draw(st.tuples(st.booleans(), st.booleans()))
            result += spelled(name, value, hyphens=styles[0], inline=styles[1])
        else:
            result.append(name)
            result += [] if "=" in name or name == "--trust-remote-code" else [draw(ODD)]
    return result


def meaning(words: list[str]) -> dict[str, object]:
    """Read flags as argparse does, without the code under test."""
    text: dict[str, object] = {"model": words[0]}
    rest = iter(words[1:])
    for word in rest:
        flag, equals, inline = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if name.removeprefix("no_") in {"enable_prefix_caching", "trust_remote_code"}:
            text[name.removeprefix("no_")] = not name.startswith("no_")
        else:
            text[name] = inline if equals else next(rest)
    return text


def plain(wanted: dict[str, ArgumentValue]) -> dict[str, object]:
    return {name: each if isinstance(each, bool) else str(each) for name, each in wanted.items()}


def in_shell(script: str) -> list[str]:
    """Return what a real shell hands to ``vllm serve``."""
    code = f"vllm() {{ shift; printf '%s\\0' \"$@\"; }}\n{script}"
    done = subprocess.run(["sh", "-c", code], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def escaped(words: list[str]) -> list[str]:
    return [re.sub(r"\$(?=[$(])", "$$", word) for word in words]


POD = "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args:{}\n---\nkind: S\n"


def _list(words: list[str]) -> str:
    items = "".join(f"\n    - {json.dumps(word)}  # why" for word in escaped(words))
    return POD.format(items)


def _args(text: str) -> list[str]:
    result = next(iter(yaml.safe_load_all(text)))["spec"]["containers"][0]["args"]
    return [word.replace("$$", "$") for word in result]


def _compose(words: list[str]) -> str:
    text = " ".join(map(shlex.quote, words)).replace("$", "$$")
    head = "services:\n  v:\n    image: vllm/vllm-openai\n    command: "
    return f"{head}{json.dumps(text)}\n    tty: true\n"


def _compose_words(text: str) -> list[str]:
    return shlex.split(yaml.safe_load(text)["services"]["v"]["command"].replace("$$", "$"))


def _unit_words(text: str) -> list[str]:
    line = text.partition("ExecStart=")[2].partition("\nRestart")[0]
    words = shlex.split(line.replace("\\\n", " "))[2:]
    return [word.replace("$$", "$").replace("%%", "%") for word in words]


SHAPES: dict[str, tuple[str, Callable[[list[str]], str], Callable[[str], list[str]]]] = {
    "list": ("pod.yaml", _list, _args),
    "flow list": (
        "pod.json",
        lambda words: json.dumps({"kind": "Pod", "spec": {"containers": [
            {"image": "vllm/vllm-openai", "args": escaped(words)}]}}, indent=1),
        _args,
    ),
    "script": (
        "run.sh",
        lambda words: "set -e\n" + " \\\n  ".join(["vllm serve", *map(shlex.quote, words)]) + "\n",
        in_shell,
    ),
    "variable": (
        "v.sh",
        lambda words: f"A={shlex.quote(shlex.join(words))}\neval vllm serve $A\n",
        in_shell,
    ),
    "compose": (
        "compose.yaml",
        _compose,
        _compose_words,
    ),
    "unit": (
        "v.service",
        lambda words: "[Service]\nExecStart=/opt/vllm serve "
        + " \\\n    ".join(shlex.quote(w).replace("$", "$$").replace("%", "%%") for w in words)
        + "\nRestart=always\n",
        _unit_words,
    ),
}  # fmt: skip


def apply(file: str, text: str, wanted: dict[str, ArgumentValue]) -> str:
    def read(changed: str) -> list[Server]:
        return servers(PurePath(file), changed, lambda _: None)

    (server,) = read(text)
    return edited(text, server, wanted, read)[0]


@pytest.mark.parametrize("shape", SHAPES)
@settings(
    max_examples=10,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a real shell reads each: no shrinking
)
@given(words=lines(), wanted=st.fixed_dictionaries(OURS))
def test_the_flags_are_as_wanted_and_nothing_else_changes(
    shape: str, words: list[str], wanted: dict[str, ArgumentValue]
) -> None:
    file, write, read = SHAPES[shape]
    text = write(words)
    assert read(text) == words
    result = apply(file, text, wanted)
    assert meaning(read(result)) == meaning(words) | plain(wanted)
    assert apply(file, result, wanted) == result


@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(words=lines(), wanted=st.fixed_dictionaries(OURS))
def test_docker_compose_reads_the_edited_file(
    tmp_path: Path, words: list[str], wanted: dict[str, ArgumentValue]
) -> None:
    (tmp_path / "compose.yaml").write_text(apply("compose.yaml", _compose(words), wanted))
    command = [binary("docker-compose"), "-f", str(tmp_path / "compose.yaml"), "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    command = yaml.safe_load(done.stdout)["services"]["v"]["command"]  # version 1 writes a text
    read = shlex.split(command) if isinstance(command, str) else command
    assert meaning([word.replace("$$", "$") for word in read]) == meaning(words) | plain(wanted)


@pytest.mark.attack
@pytest.mark.timeout(20)
def test_no_command_line_takes_long() -> None:
    assert vllm_in(["nice", *["-n", "env"] * 10_000, "x"], {}) is None
    assert vllm_in(["docker", "run", *["-e", "A=b"] * 10_000, "-x"], {}) is None
    assert vllm_in(["sudo", *["-u", "python3"] * 10_000, "x"], {}) is None


@pytest.mark.vllm
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    words=lines(others=["--api-key=s$ cr'et", "--trust-remote-code"]),
    wanted=st.fixed_dictionaries(OURS),
)
def test_vllm_parses_the_edited_line(words: list[str], wanted: dict[str, ArgumentValue]) -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    outer = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(outer.add_subparsers(dest="subparser"))
    file, write, read = SHAPES["script"]
    parsed = outer.parse_args(["serve", *read(apply(file, write(words), wanted))])
    assert {name: getattr(parsed, name) for name in wanted} == wanted
    assert (parsed.model_tag or parsed.model) == "acme/m"
