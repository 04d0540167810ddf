"""What `tuner sweep --ray` finds on a cluster: kinds of nodes, and what serves on each."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.commands.sweep.setup import SweepOptions, starter_of
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import Starter
from tuner.errors import RunError, UsageError
from tuner.runs.cluster.kinds import Description
from tuner.runs.cluster.share import Node, Share, share_of, usable

if TYPE_CHECKING:
    from tuner.runs.cluster.session import RaySession
    from tuner.runs.cluster.sweeps import Kind

LABEL = "tuner/kind"
"""Label of a node: which of several worlds it simulates."""


def kinds_on(
    session: "RaySession", options: SweepOptions, header_model: str | None
) -> tuple["dict[str, Kind]", list[str]]:
    """Return the kinds of nodes that can serve, and why others cannot. Raises RunError when there
    is none."""
    from tuner.runs.cluster.site import described, lines_of  # noqa: PLC0415 - imports ray
    from tuner.runs.cluster.sweeps import Kind, named  # noqa: PLC0415

    nodes = {node.id: node for node in session.nodes()}
    said, left_out = described(session, list(nodes.values()))
    worlds = worlds_of(options)
    groups = named(said) if options.engine != "sim" else of_worlds(worlds, nodes, said, left_out)
    found: dict[str, Kind] = {}
    for name, members in groups.items():
        starter = starter_of(replace(options, world=worlds.get(name)), header_model)
        share = _share(options, header_model, said[members[0]])
        here = {node.id: node.name for node in usable([nodes[one] for one in members], share)}
        left_out |= {
            one: f"an engine takes {share}, more than it has" for one in members if one not in here
        }
        if here:
            description = _as_what(starter, said[members[0]])
            simulated = options.engine == "sim"
            found[name] = Kind(name, here, description, share, starter, simulated)
    if not found:
        raise RunError(
            f"--ray {options.ray}: none of its {len(nodes)} nodes can be used: "
            f"{'; '.join(sorted(set(left_out.values())))}",
            hint="docs/ray.md says what a node needs.",
        )
    return found, list(lines_of(list(nodes.values()), left_out))


def worlds_of(options: SweepOptions) -> dict[str, Path]:
    """Return the world of each kind of node: ``--world fast=a.yaml,slow=b.yaml``, or one for all.

    Raises UsageError.
    """
    if options.engine != "sim":
        return {}
    if options.world is None:
        raise UsageError("--engine sim needs a world", hint="Give --world FILE.")
    found: dict[str, Path] = {}
    for part in str(options.world).split(","):
        name, equals, path = part.partition("=")
        world = Path(path if equals else name)
        kind = name if equals else world.stem
        if not kind or kind in found:
            raise UsageError(
                f"--world {part}: names no kind, or one that has a world already",
                hint="As in --world fast=a.yaml,slow=b.yaml.",
            )
        found[kind] = world
    return found


def of_worlds(
    worlds: Mapping[str, Path],
    nodes: Mapping[str, Node],
    said: Mapping[str, Description],
    left_out: dict[str, str],
) -> dict[str, list[str]]:
    """Return world → nodes: by their label, where there are several worlds.

    Raises UsageError for a world that no node is of.
    """
    if len(worlds) == 1:
        return {name: list(said) for name in worlds if said}
    there = {label for node in nodes.values() if (label := node.labels.get(LABEL)) is not None}
    for name in worlds:
        if name not in there:
            raise UsageError(
                f"--world {name}={worlds[name]}: no node has the label {LABEL}={name}; the kinds "
                f"there are: {', '.join(sorted(there)) or 'none'}",
                hint=f"Leave it out, or start a node with --labels {LABEL}={name}.",
            )
    found: dict[str, list[str]] = {}
    for one in said:
        label = nodes[one].labels.get(LABEL, "none")
        if label in worlds:
            found.setdefault(label, []).append(one)
        else:
            left_out[one] = f"its label {LABEL} is {label}, which names no --world"
    return {name: found[name] for name in worlds if name in found}


def _share(options: SweepOptions, header_model: str | None, node: Description) -> Share:
    if options.engine == "sim":
        return share_of({}, on_gpus=False, cpus=options.ray_cpus)
    arguments = engine_arguments(
        model=options.model,
        base=options.base,
        header_model=header_model,
        overrides=options.overrides,
    )
    # of data-parallel ranks one is measured
    one_rank = {k: v for k, v in arguments.items() if not k.startswith("data_parallel_")}
    on_gpus = node.device.get("kind") == "gpu"
    return share_of(one_rank, on_gpus=on_gpus, cpus=options.ray_cpus)


def _as_what(starter: Starter, node: Description) -> Description:
    """Return what a node counts as: the machine that it simulates, if it does."""
    from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba

    if not isinstance(starter, SimStarter):
        return node
    return replace(node, device=starter.device, versions=starter.versions)
