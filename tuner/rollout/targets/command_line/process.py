"""Finds vLLM's server in the words that start a process. Pure.

The word "vllm" in a name, in a value or in an image proves nothing: what proves it is the program,
or an image whose entrypoint is known.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.rollout.targets import images

_MODULES = {
    "vllm.entrypoints.api_server",
    "vllm.entrypoints.openai.api_server",
}
_COMMANDS = "vllm.entrypoints.cli.main"
_SCRIPTS = ("vllm/entrypoints/openai/api_server.py", "vllm/entrypoints/api_server.py")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)

_LAUNCHERS = frozenset(
    {
        *("!", "do", "elif", "else", "if", "then", "until", "while", "{"),
        *("builtin", "command", "exec", "time"),
        *("catatonit", "cgexec", "chrt", "conda", "ddtrace-run", "doas", "dumb-init", "env"),
        *("hatch", "ionice", "mamba", "micromamba", "mpiexec", "mpirun", "ncu", "newrelic-admin"),
        *("nice", "nohup", "nsys", "numactl", "opentelemetry-instrument", "pdm", "perf", "pipenv"),
        *("pixi", "poetry", "prlimit", "runuser", "setarch", "setpriv", "setsid", "srun", "stdbuf"),
        *("strace", "sudo", "systemd-inhibit", "systemd-run", "taskset", "timeout", "tini"),
        *("unbuffer", "uv", "uvx", "xvfb-run"),
        *("profile", "run", "run-program", "stat", "record"),
    }
)
"""Words of a shell, programs that start what stands behind them, and their subcommands."""

_LAUNCHERS_OF_ONE_WORD = frozenset({"chroot", "gosu", "s6-setuidgid", "su-exec"})
"""The word behind these is a user or a folder."""

_AMOUNT = re.compile(r"(0x)?[\da-f.,:-]+[smhd]?")

_ENGINES = {"docker", "nerdctl", "podman"}


@dataclass(frozen=True, slots=True)
class Process:
    """A server of vLLM's."""

    begin: int
    """Which word is the first that is vLLM's own."""

    evidence: str
    """Why it is one, in words."""


def server(words: Sequence[str]) -> Process | None:
    """Return the server that a command starts; None where it starts none that is known.

    >>> server(["exec", "vllm", "serve", "acme/m"])
    Process(begin=3, evidence='vllm serve')
    >>> server(["gateway", "-poolName", "vllm", "serve"]) is None
    True
    """
    for at in _programs(words):
        if words[at].rpartition("/")[2] in _ENGINES:
            return _in_container(words, at)
        if (found := _vllm_at(words, at)) is not None:
            return found
    return None


def _programs(words: Sequence[str]) -> Iterator[int]:
    """Yield which words may be the program.

    That is the first word that sets no variable. Behind a launcher it may be any word that follows
    an option, because an option's value cannot be told from a program, and the first that is no
    option.
    """
    at, is_launched = 0, False
    while at < len(words):
        name = words[at].rpartition("/")[2]
        if name in _LAUNCHERS | _LAUNCHERS_OF_ONE_WORD:
            is_launched = True
            at += 2 if name in _LAUNCHERS_OF_ONE_WORD else 1
        elif is_launched and name.startswith("-"):
            at += 1
            if at < len(words) and not words[at].startswith("-"):
                yield at
                at += 1
        elif _ASSIGNMENT.fullmatch(words[at]) or (is_launched and _AMOUNT.fullmatch(name)):
            at += 1
        else:
            yield at
            return


def _vllm_at(words: Sequence[str], at: int) -> Process | None:
    """Return the server, should the program be this word."""
    name = words[at].rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        options = itertools.takewhile(
            lambda word: word.startswith("-") and word != "-m", words[at + 1 :]
        )
        first = at + 1 + len(list(options))
        if words[first : first + 1] == ["-m"]:
            return _module(words, first + 1)
        return _vllm_at(words, first) if first < len(words) else None
    if name == "vllm" and words[at + 1 : at + 2] == ["serve"]:
        return Process(at + 2, "vllm serve")
    return Process(at + 1, name) if words[at].endswith(_SCRIPTS) else None


def _module(words: Sequence[str], at: int) -> Process | None:
    module, command = words[at : at + 1], words[at + 1 : at + 2]
    if module == [_COMMANDS] and command == ["serve"]:
        return Process(at + 2, f"-m {_COMMANDS} serve")
    return Process(at + 1, f"-m {module[0]}") if module and module[0] in _MODULES else None


def image_of(words: Sequence[str]) -> int | None:
    """Return which word is the image that ``docker run`` starts; None where it does not run."""
    for at in _programs(words):
        if words[at].rpartition("/")[2] in _ENGINES and "run" in words[at + 1 :]:
            return _image_of(words, words.index("run", at + 1) + 1)[0]
    return None


def _in_container(words: Sequence[str], at: int) -> Process | None:
    """Return the server that ``docker run`` starts."""
    run = next((n for n in range(at + 1, len(words)) if words[n] == "run"), None)
    if run is None:
        return None
    image, entrypoint = _image_of(words, run + 1)
    if image is None:
        return None
    if entrypoint is None and (known := images.entrypoint(words[image])) is not None:
        begin = image + 1 + (words[image + 1 : image + 2] == ["serve"])
        if not _starts_shell(words[image + 1 : image + 2]):
            return Process(begin, known)
    inner = [*([entrypoint] if entrypoint else []), *words[image + 1 :]]
    found = server(inner)
    shift = image + 1 - (1 if entrypoint else 0)
    return None if found is None else Process(found.begin + shift, found.evidence)


def _starts_shell(words: Sequence[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] in {"bash", "sh"}


def _image_of(words: Sequence[str], begin: int) -> tuple[int | None, str | None]:
    """Return which word is the image, the first that is no option and no option's value, and what
    ``--entrypoint`` says."""
    at, entrypoint = begin, None
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word == "-":
            return at, entrypoint
        name, equals, value = word.partition("=")
        takes = not equals and _takes_value(name)
        if name == "--entrypoint":
            entrypoint = value if equals else "".join(words[at + 1 : at + 2])
        at += 1 + takes
    return None, entrypoint


_WITHOUT_VALUE = frozenset(
    {
        *("--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init"),
        *("--interactive", "--no-healthcheck", "--no-hostname", "--no-hosts", "--oom-kill-disable"),
        *("--passwd", "--privileged", "--publish-all", "--quiet", "--read-only"),
        *("--read-only-tmpfs", "--replace", "--rm", "--rmi", "--rootfs", "--sig-proxy"),
        *("--tls-verify", "--tty", "--unsetenv-all", "--use-api-socket"),
    }
)
"""Options of ``docker run`` and ``podman run`` that take no word: docs.docker.com/reference/cli/
docker/container/run and docs.podman.io/en/stable/markdown/podman-run.1.html."""

_LETTERS_WITHOUT_VALUE = set("dhiPqt")


def _takes_value(option: str) -> bool:
    if option.startswith("--"):
        return option not in _WITHOUT_VALUE
    # the value of -itp 80:80 is still to come; in -p80:80 it is there
    before, last = set(option[1:-1]), option[1:][-1:]
    return last != "" and last not in _LETTERS_WITHOUT_VALUE and before <= _LETTERS_WITHOUT_VALUE
