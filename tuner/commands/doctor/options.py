"""``tuner doctor``: its options."""

from dataclasses import dataclass
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    AnyVllm,
    Base,
    Engine,
    Json,
    Overrides,
    StartTimeout,
    World,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DoctorOptions:
    """Say whether this machine and its vLLM can be measured on, a line for each check.

    PASS, FAIL with its cure, or SKIP with its reason. Exits with 6 when one fails. Two engines are
    started, one at the ceiling and one with 8 slots; with --quick none is.
    """

    quick: Annotated[
        bool, typer.Option(help="Without an engine: device, driver, memory, arguments.")
    ] = False
    model: Annotated[str, typer.Option(help="Model that the engines serve.")] = "tuner:tiny"
    base: Base = None
    overrides: Overrides = ()
    engine: Engine = "vllm"
    world: World = None
    ceiling: Annotated[int, typer.Option(min=1, help="max_num_seqs of the large engine.")] = 32
    start_timeout: StartTimeout = None
    any_vllm: AnyVllm = False
    json: Json = False
