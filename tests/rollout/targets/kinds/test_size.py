"""A large file is edited in time that grows with its size, or refused in one line."""

import time
from collections.abc import Callable

import pytest

from tests.support.targets import kind_of, write
from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError, UsageError

SEQS: dict[str, ArgumentValue] = {"max_num_seqs": 16}
POD = "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
SCRIPT = f"{POD}  - name: v\n    command: [sh, -c]\n    args:\n    - |\n      vllm serve m"
SECONDS = 1.0
"""Each takes a fraction of it; with squares of its length it took minutes."""


def flags(count: int) -> str:
    return "".join(f" --k{n} 1" for n in range(count))


SIZED: dict[str, tuple[str, Callable[[int], str]]] = {
    "kubernetes script": ("f.yaml", lambda n: f"{SCRIPT} --max-num-seqs 1{flags(n)}\n"),
    "kubernetes list": (
        "f.yaml",
        lambda n: (
            f"{POD}  - name: v\n    args: [--max-num-seqs=1, {', '.join(flags(n).split())}]\n"
        ),
    ),
    "kubernetes words": (
        "f.yaml",
        lambda n: f"{POD}  - name: v\n    args:\n    - --max-num-seqs=1\n" + "    - --x\n" * n,
    ),
    "compose": (
        "f.yaml",
        lambda n: f"services:\n  v:\n    command: vllm serve m --max-num-seqs 1{flags(n)}\n",
    ),
    "systemd": (
        "f.service",
        lambda n: f"[Service]\nExecStart=vllm serve m --max-num-seqs 1{flags(n)}\n",
    ),
    "env": ("f.env", lambda n: f"VLLM_ARGS='m --max-num-seqs 1{flags(n)}'\n"),
    "vllm-config": (
        "f.yaml",
        lambda n: "max-num-seqs: 1\nhf-overrides:\n" + "".join(f"  k{m}: 1\n" for m in range(n)),
    ),
}


def edited(name: str, text: str) -> str:
    return write(kind_of(name, text), text, SEQS, source=name)


@pytest.mark.parametrize("kind", SIZED)
def test_hundreds_of_flags_are_no_trouble(kind: str) -> None:
    name, text_of = SIZED[kind]
    text, begun = text_of(500), time.process_time()
    new = edited(name, text)
    assert time.process_time() - begun < SECONDS
    assert new == text.replace("max-num-seqs 1", "max-num-seqs 16", 1).replace(
        "max-num-seqs=1", "max-num-seqs=16", 1
    ).replace("max-num-seqs: 1", "max-num-seqs: 16", 1)
    assert edited(name, new) == new


def test_braces_that_are_not_closed_are_looked_at_once() -> None:
    text = f"{SCRIPT} --max-num-seqs 1 --x '{'{{' * 15_000}'\n"
    begun = time.process_time()
    assert "--max-num-seqs 16 " in edited("f.yaml", text)
    assert time.process_time() - begun < 2 * SECONDS


def test_a_command_line_that_no_kernel_takes_is_refused() -> None:
    with pytest.raises(TargetError, match="longer than the 131072 characters that Linux starts"):
        edited("f.yaml", f"{SCRIPT}{' x' * 70_000}\n")


def test_of_many_containers_a_few_are_named() -> None:
    text = POD + "".join(f"  - name: c{n:03}\n    args: [--max-num-seqs=1]\n" for n in range(300))
    with pytest.raises(UsageError) as refused:
        edited("f.yaml", text)
    assert refused.value.hint == (
        f"--container NAME, of {', '.join(f'p/c{n:03}' for n in range(20))} and 280 more."
    )
