"""How a refinement looks."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.commands.console import console_for, shown_ms
from tuner.refine.bench import told
from tuner.refine.importance import FEWEST
from tuner.refine.knobs import LIVE, Configuration, Space
from tuner.refine.objective import Objective
from tuner.refine.outcome import Tried
from tuner.refine.refinement import Refinement


def said_of_space(space: Space) -> Iterator[str]:
    """Yield a line for everything that is searched, and for what is not."""
    for knob in space.knobs:
        values = ", ".join("default" if one is None else str(one) for one in knob.values)
        how = "live" if knob.name in LIVE else "an engine each"
        yield f"searching {knob.name} ({how}): {values}; {knob.why}"
    for line in space.left_out:
        yield f"not searching {line}"


def render(
    found: Refinement,
    space: Space,
    objectives: Sequence[Objective],
    *,
    profile_path: Path,
    run_dir: Path,
) -> None:
    """Print the trials, the comparison and what it means."""
    console = console_for()
    console.print(_trials(found, space, objectives))
    console.print()
    if found.paired is not None:
        console.print(f"{told(found.chosen)} against the knee, {found.paired.pairs} pairs in turns")
        for ratio in found.paired.ratios.values():
            console.print(f"  {ratio}")
    console.print(f"[bold]{escape(found.reason)}[/]")
    for one in found.front:
        console.print(f"on the front: {escape(told(one.configuration))}")
    _render_importances(console, found, space)
    console.print(
        f"{len(found.starts_s)} engine starts, {sum(found.starts_s):.0f}s; {found.replay_s:.0f}s "
        f"of replay; {found.pruned} trials ended early"
        + (f"; {found.of_others} more of others who share the study" if found.of_others else "")
    )
    for failed in found.failed:
        console.print(f"[yellow]Failed:[/] {escape(failed)}")
    for warning in found.warnings:
        console.print(f"[yellow]Warning:[/] {escape(warning)}")
    console.print(f"measurements: {escape(str(run_dir))}", soft_wrap=True)
    console.print(f"profile: {escape(str(profile_path))}", soft_wrap=True)
    if found.outcome is None:
        console.print("the knee stays: the profile is as it was, but for its reason")
    else:
        console.print(f"next: tuner verify {escape(str(profile_path))} …", soft_wrap=True)


def _trials(found: Refinement, space: Space, objectives: Sequence[Objective]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("configuration")
    twin = ", with twin" if any(one.foreseen is not None for one in found.tried) else ""
    for heading in (
        *(f"{aim.name}\ngain{twin}" for aim in objectives),
        "in SLO",
        "goodput\nreq/s",
        "TPOT\np95 ms",
        "E2EL\np99 ms",
    ):
        table.add_column(heading, justify="right")
    for one in found.tried:
        table.add_row(
            escape(_changed(one, space.knee)),
            *(f"{math.expm1(gain):+.1%}" for gain in one.gains),
            f"{one.measured.attainment:.1%}",
            f"{one.measured.goodput_rps:.2f}",
            shown_ms(one.measured.tpot_s.p95 * 1e3 if one.measured.tpot_s else None),
            shown_ms(one.measured.e2el_s.p99 * 1e3 if one.measured.e2el_s else None),
            style="bold" if one.configuration == found.chosen else None,
        )
    return table


def _changed(one: Tried, knee: Configuration) -> str:
    changed = {k: v for k, v in one.configuration.items() if v != knee.get(k)}
    return told(changed) if changed else f"the knee: {told(knee)}"


def _render_importances(console: Console, found: Refinement, space: Space) -> None:
    for aim, shares in found.importances:
        if not shares:
            console.print(escape(_why_unknown(aim, space)))
        for one in shares:
            console.print(
                f"{one.name} explains {one.share:.0%} of {aim} ({one.low:.0%} to {one.high:.0%})"
            )


def _why_unknown(aim: str, space: Space) -> str:
    if len(space.knobs) == 1:
        return f"{space.knobs[0].name} alone was searched: there is nothing to weigh for {aim}"
    return f"which argument matters for {aim} cannot be told from fewer than {FEWEST} trials"
