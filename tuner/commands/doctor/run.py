"""Runs ``tuner doctor``: asks machine and engine, and prints their answers one a line."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from rich.console import Console

from tuner.commands.doctor.options import DoctorOptions
from tuner.commands.shared.engine import world_alone
from tuner.commands.shared.output import print_json
from tuner.engines.checks import engine as engine_checks
from tuner.engines.checks import machine
from tuner.engines.checks.check import MachineCheck
from tuner.engines.checks.machine_here import machine_here
from tuner.engines.devices import gpus_of
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter, hollow
from tuner.errors import EngineError, GateError, Interrupted
from tuner.system import interruption
from tuner.system.printable import printable

Ask = Coroutine[Any, Any, None]


def run(options: DoctorOptions) -> None:
    """Ask and print. Raises GateError when a check fails, and other TunerErrors."""
    starter, execute = _place(options)
    found: list[MachineCheck] = []

    def tell(more: list[MachineCheck]) -> None:
        found.extend(more)
        if not options.json:
            _print(more)

    try:
        if isinstance(starter, VllmStarter):
            tell(machine.checks(machine_here(gpus_needed=gpus_of(starter.asked))))
        _ask_engine(options, starter, execute, tell)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Interrupted("some checks are missing", hint="Run the command again.") from None
    if options.json:
        print_json({"checks": [asdict(one) for one in found]})
    if failed := [one for one in found if one.status == "FAIL"]:
        raise GateError(
            f"{len(failed)} of {len(found)} checks failed: {failed[0].name}: {failed[0].said}",
            hint=failed[0].cure,
        )


def _ask_engine(
    options: DoctorOptions,
    starter: Starter,
    execute: Callable[[Ask], None],
    tell: engine_checks.Tell,
) -> None:
    """Tell what engines answer; one that does not start is an answer too."""
    try:
        arguments = dict(starter.resolve(max_num_seqs=options.ceiling))
        if isinstance(starter, VllmStarter):
            arguments |= starter.how(max_num_seqs=options.ceiling)
        tell(machine.resolved(arguments))
        if not options.quick:
            from tuner.commands.doctor.twin import twin_check  # noqa: PLC0415 - the twin

            is_real = isinstance(starter, VllmStarter)
            fast = hollow(step_s=engine_checks.FAST_STEP_S) if is_real else None
            execute(
                engine_checks.checks(
                    starter, ceiling=options.ceiling, twin=twin_check, tell=tell, hollow=fast
                )
            )
    except EngineError as problem:
        tell([MachineCheck("engine", "FAIL", str(problem), problem.hint)])


def _place(options: DoctorOptions) -> tuple[Starter, Callable[[Ask], None]]:
    if (world := world_alone(options)) is not None:
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba, for sim alone
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        return SimStarter(read_world(world)), virtual_time.run
    arguments = engine_arguments(
        model=options.model, base=options.base, header_model=None, overrides=options.overrides
    )
    return VllmStarter(arguments), interruption.run


def _print(found: list[MachineCheck]) -> None:
    """Print one line a check, of any length: to be read, and to be searched."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for one in found:
        style = {"FAIL": "bold red", "SKIP": "dim", "PASS": None}[one.status]
        console.print(line_of(one), style=style)


def line_of(one: MachineCheck) -> str:
    said, cure = (one.said.rstrip("."), f". {one.cure}") if one.cure else (one.said, "")
    return printable(f"{one.status}  {one.name}: {said}{cure}")
