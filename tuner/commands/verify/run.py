"""``tuner verify``, and its output."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.commands.shared.console import console_for
from tuner.commands.shared.engine import world_of
from tuner.commands.shared.machine import Here, ThisMachine, check_machine
from tuner.commands.shared.traffic import one_engines, served_in
from tuner.commands.verify.junit import junit
from tuner.commands.verify.options import VerifyOptions
from tuner.engines.devices import DeviceMeter
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import GateError, Interrupted, ProfileError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import restored
from tuner.replay.readings import Read
from tuner.runs.verify.gates import Gate
from tuner.runs.verify.verify import Verification, verify
from tuner.system import interruption
from tuner.trace.trace import load
from tuner.traffic.workload import parse_step_s


def run(options: VerifyOptions) -> None:
    """Verify and print. Raises GateError when a promise is broken, and other TunerErrors."""
    with junit(options.junit, profile=str(options.profile), said=_said) as write:
        found = _verified(options)
        write(found)
        _report(options, found)


def _verified(options: VerifyOptions) -> list[Gate]:
    profile = load_profile(options.profile)
    if profile.twin is None:
        raise ProfileError(
            f"{options.profile}: twin: is null: the windows alone decided this profile",
            hint="Sweep again; only a twin can say what this trace's windows should give.",
        )
    if profile.decision.verdict in {"overloaded", "inconclusive"} and not options.force:
        raise GateError(
            f"{options.profile}: its verdict is {profile.decision.verdict}: it promises nothing "
            "that could be kept",
            hint="Sweep again with what its reason asks for, or verify it all the same: --force.",
        )
    twin = restored(profile.twin, source=str(options.profile))
    step_s = parse_step_s(options.step)
    trace = load(options.trace)
    served = served_in(trace, options.trace)
    requests = one_engines(served, options, ranks=profile.provenance.ranks)
    place = _place(options, profile)
    if not options.force:
        check_machine(profile, place.here)
    console = Console(stderr=True, highlight=False)

    def tell(text: str) -> None:
        console.print(escape(text), soft_wrap=True)

    question = Verification(
        twin=twin,
        slo=profile.decision.slo.slo,
        max_num_seqs=profile.decision.max_num_seqs,
        hit_share=profile.twin.hit_share,
        trace_block_size=trace.header.block_size,
        window=options.window,
        step_s=step_s,
        tolerance=options.tolerance,
        seed=options.seed,
    )
    try:
        return place.execute(verify(requests, place.starter, question, tell=tell, read=place.read))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Interrupted("nothing was verified", hint="Run the command again.") from None


Verify = Coroutine[Any, Any, list[Gate]]


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of the engine: what starts it, the loop, and what reads the device."""

    here: Here
    starter: Starter
    execute: Callable[[Verify], list[Gate]]
    read: Read | None


def _place(options: VerifyOptions, profile: ServingProfile) -> _Place:
    """Return where engines with the profile's arguments run."""
    if (world := world_of(options)) is not None:
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba, for sim alone
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        simulated = SimStarter(read_world(world), model=profile.model)
        return _Place(simulated, simulated, virtual_time.run, None)
    arguments = {key: value for key, value in profile.engine.items() if key != "max_num_seqs"}
    starter = VllmStarter(cast("Any", arguments))
    return _Place(ThisMachine(), starter, interruption.run, DeviceMeter().read)


def _report(options: VerifyOptions, found: list[Gate]) -> None:
    broken = [gate for gate in found if not gate.kept]
    if options.json:
        result = {
            "profile": str(options.profile),
            "trace": str(options.trace),
            "kept": not broken,
            "gates": [asdict(gate) for gate in found],
        }
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        _render(found)
    if broken:
        raise GateError(
            "; ".join(map(_said, broken)),
            hint="Do not roll it out: sweep again on this machine with this trace.",
        )


def _said(gate: Gate) -> str:
    if gate.name == "slo":
        return f"{gate.measured:.1%} were served within the SLO: fewer than {gate.limit:.0%}"
    if gate.name == "attainment":
        return (
            f"{gate.measured:.1%} were served within the SLO, promised were {gate.promised:.1%} "
            f"(at least {gate.limit:.1%})"
        )
    unit = " ms" if gate.name.endswith("_ms") else ""
    return (
        f"{gate.name.removesuffix('_ms')} was {gate.measured:,.1f}{unit}, promised was "
        f"{gate.promised:,.1f}{unit} (at most {gate.limit:,.1f}{unit})"
    )


def _render(found: Sequence[Gate]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("gate", "promised", "limit", "measured", ""):
        table.add_column(heading, justify="left" if heading in {"gate", ""} else "right")
    for gate in found:
        shown = "{:.1%}" if gate.name in {"slo", "attainment"} else "{:,.1f}"
        table.add_row(
            gate.name,
            shown.format(gate.promised),
            shown.format(gate.limit),
            shown.format(gate.measured),
            "kept" if gate.kept else "[bold red]broken[/]",
        )
    console_for().print(table)
