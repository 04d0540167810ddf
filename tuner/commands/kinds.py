"""``tuner sweep --ray``: a sweep on each kind of node of a Ray cluster, side by side."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tuner.commands.options import SweepOptions
from tuner.commands.shared.next_step import after, check_required
from tuner.commands.shared.results import finish
from tuner.commands.shared.run_folder import kept, making_sense, open_each, open_run
from tuner.commands.sweep import Ready, Swept, finished, keep_trace, ready_on, sealed, starter_of
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, RunError, TunerError, UndecidedError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import engine_time, is_simulated
from tuner.runs.cluster.share import Node, share_of, usable
from tuner.runs.result import json_object
from tuner.system import interruption
from tuner.trace.trace import Trace, load
from tuner.views.live import Progress
from tuner.views.page import Page, Section
from tuner.views.profile import curve_table, several_page

if TYPE_CHECKING:
    from tuner.runs.cluster.kinds import Description
    from tuner.runs.cluster.session import RaySession
    from tuner.runs.cluster.sweeps import Kind

LABEL = "tuner/kind"
"""Label of a node: which of several worlds it simulates."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a sweep on one kind of node."""

    kind: str
    takes: str
    """What an engine takes of such a node."""
    path: Path
    done: Swept | None
    profile: ServingProfile | None
    """What was written to ``path``."""
    error: TunerError | None


def run(options: SweepOptions) -> None:
    """Sweep on every kind of node, and compare them. Raises TunerError."""
    from tuner.runs.cluster.session import joined  # noqa: PLC0415 - imports ray

    if options.dry_run or options.metrics_port:
        raise UsageError(
            "--dry-run and --metrics-port are for a sweep on this machine", hint="Leave out --ray."
        )
    assert options.ray is not None
    began_s, trace = time.monotonic(), load(options.trace)
    with ExitStack() as stack:
        session = stack.enter_context(joined(options.ray))
        kinds, left_out = kinds_on(session, options, trace.header.model)
        if len(kinds) > 1 and options.slo is None:
            raise UsageError(
                f"{len(kinds)} kinds of nodes ({', '.join(kinds)}) are compared under one SLO",
                hint="Give it: --slo ttft=500ms,tpot=50ms. Without one each would derive its own.",
            )
        outcomes, run_dir = _swept(session, options, trace, kinds, left_out, began_s)
    _conclude(options, outcomes, run_dir)


def _swept(  # noqa: PLR0913, PLR0917 - what is swept, on what
    session: "RaySession",
    options: SweepOptions,
    trace: Trace,
    kinds: "Mapping[str, Kind]",
    left_out: Sequence[str],
    began_s: float,
) -> tuple[list[Outcome], Path]:
    """Sweep on every kind at the same time, and write their profiles."""
    from tuner.runs.cluster.sweeps import Job, sweep_all  # noqa: PLC0415 - imports ray

    paths = outputs_of(options.output, list(kinds))
    for path in paths.values():
        profiles.check_output(path, force=None)
    parts = {name: ready_on(options, trace, kind.starter, began_s) for name, kind in kinds.items()}
    plans = {name: _plan(session, kinds[name], part) for name, part in parts.items()}
    first = next(iter(parts.values()))
    common = {k: v for k, v in plans[next(iter(plans))].items() if k not in _OWN}
    devices = {name: dict(kind.device) for name, kind in kinds.items()}
    book = open_run("sweep", options, {**common, "kinds": devices})
    books = open_each(book, plans)
    progress = Progress(first.settings.budget_s)
    for warning in (*first.warnings, *session.cautions(), *left_out):
        progress.warn(warning)
    for note in first.notes:
        progress.stage(note)
    with kept(book, *books.values()):
        for name, part in parts.items():
            keep_trace(part, books[name])
        jobs = {
            name: (kind, Job(parts[name].requests, parts[name].settings, kind.starter))
            for name, kind in kinds.items()
        }
        watchers = {name: progress.named(name) for name in kinds}
        with progress:
            results = interruption.run(sweep_all(session, jobs, books, watchers))
    outcomes = []
    with making_sense(book.run_dir, is_stored=True):
        for name, kind in kinds.items():
            done, profile, result = None, None, results[name]
            if not isinstance(result, TunerError):
                done = finished(parts[name], result, books[name].run_dir)
                profile = sealed(done)
                profiles.keep(profile, done.run_dir)
                profiles.check_output(paths[name], force=None)
                profiles.save(profile, paths[name])
            error = result if isinstance(result, TunerError) else None
            outcomes.append(Outcome(name, str(kind.share), paths[name], done, profile, error))
    return outcomes, book.run_dir


_OWN = {"engine_arguments", "device"}
"""Of a plan, what each kind has of its own."""


def _plan(session: "RaySession", kind: "Kind", part: Ready) -> dict[str, Any]:
    """Return what a kind's measurements rest on, its arguments as a node of it resolves them."""
    from tuner.runs.cluster.sweeps import resolved  # noqa: PLC0415 - imports ray

    first = next(iter(kind.nodes))
    (node,) = (node for node in session.nodes() if node.id == first)
    answer = session.ask(resolved, [node], kind.starter, part.options.ceiling)[first]
    if isinstance(answer, Exception):
        answer = (str(answer), "Look into Ray's logs of that node.")
    if isinstance(answer, tuple):
        raise EngineError(f"{kind.name}: {answer[0]}", hint=answer[1])
    return part.plan_with(answer) | {"device": dict(kind.device)}


def outputs_of(output: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return where each kind's profile goes: beside ``output``, called after the kind too."""
    suffix = output.suffix or ".yaml"
    return {name: output.with_name(f"{output.stem}-{name}{suffix}") for name in names}


def _conclude(options: SweepOptions, outcomes: Sequence[Outcome], run_dir: Path) -> None:
    """Print all. Raises what ended the sweeps where none was ended well."""
    errors = [each.error for each in outcomes if each.error is not None]
    if len(errors) == len(outcomes):
        raise errors[0]
    result = {"kinds": dict(map(_json, outcomes)), "run_dir": str(run_dir)}
    page = _page(outcomes, run_dir, options)
    finish(options, result, page, run_dir)
    for each in outcomes:
        if each.profile is not None:
            check_required(each.profile, each.path, cure="")
    verdicts = [each.done.outcome.verdict for each in outcomes if each.done is not None]
    if not any(verdict.is_defended for verdict in verdicts):
        raise UndecidedError(
            verdicts[0].reason, hint="The profiles are safe to serve; give a larger --budget."
        )


def kinds_on(
    session: "RaySession", options: SweepOptions, header_model: str | None
) -> tuple["dict[str, Kind]", list[str]]:
    """Return the kinds of nodes that can serve, and why others cannot. Raises RunError when there
    is none."""
    from tuner.runs.cluster.kinds import described, lines_of, named  # noqa: PLC0415 - imports ray
    from tuner.runs.cluster.sweeps import Kind  # noqa: PLC0415

    nodes = {node.id: node for node in session.nodes()}
    known, left_out = described(session, list(nodes.values()))
    worlds = worlds_of(options)
    groups = named(known) if options.world is None else of_worlds(worlds, nodes, known, left_out)
    result: dict[str, Kind] = {}
    for name, members in groups.items():
        starter = starter_of(replace(options, world=worlds.get(name)), header_model)
        arguments = starter.arguments if isinstance(starter, VllmStarter) else {}
        on_gpus = bool(arguments) and known[members[0]].device.get("kind") == "gpu"
        share = share_of(arguments, on_gpus=on_gpus)
        here = {node.id: node.name for node in usable([nodes[each] for each in members], share)}
        few = f"an engine takes {share}, more than it has"
        left_out |= {each: few for each in members if each not in here}
        if here:
            device = known[members[0]].device
            if options.world is not None:  # the machine that it simulates
                device = cast("Any", starter).device
            result[name] = Kind(name, here, device, share, starter)
    if not result:
        raise RunError(
            f"--ray {options.ray}: none of its {len(nodes)} nodes can be used: "
            f"{'; '.join(sorted(set(left_out.values())))}",
            hint="docs/more.md says what a node needs.",
        )
    return result, list(lines_of(list(nodes.values()), left_out))


def worlds_of(options: SweepOptions) -> dict[str, Path]:
    """Return the world of each kind of node: ``--world fast=a.yaml,slow=b.yaml``, or one for all.

    Raises UsageError.
    """
    result: dict[str, Path] = {}
    for part in [] if options.world is None else str(options.world).split(","):
        name, equals, path = part.partition("=")
        world = Path(path if equals else name)
        kind = name if equals else world.stem
        if not kind or kind in result:
            raise UsageError(
                f"--world {part}: names no kind, or one that has a world already",
                hint="As in --world fast=a.yaml,slow=b.yaml.",
            )
        result[kind] = world
    return result


def of_worlds(
    worlds: Mapping[str, Path],
    nodes: Mapping[str, Node],
    descriptions: "Mapping[str, Description]",
    left_out: dict[str, str],
) -> dict[str, list[str]]:
    """Return world → nodes: by their label, where there are several worlds.

    Raises UsageError for a world that no node is of.
    """
    if len(worlds) == 1:
        return {name: list(descriptions) for name in worlds if descriptions}
    there = {label for node in nodes.values() if (label := node.labels.get(LABEL)) is not None}
    for name in worlds:
        if name not in there:
            raise UsageError(
                f"--world {name}={worlds[name]}: no node has the label {LABEL}={name}; the kinds "
                f"there are: {', '.join(sorted(there)) or 'none'}",
                hint=f"Leave it out, or start a node with --labels {LABEL}={name}.",
            )
    result: dict[str, list[str]] = {}
    for each in descriptions:
        label = nodes[each].labels.get(LABEL, "none")
        if label in worlds:
            result.setdefault(label, []).append(each)
        else:
            left_out[each] = f"its label {LABEL} is {label}, which names no --world"
    return {name: result[name] for name in worlds if name in result}


def _json(outcome: Outcome) -> tuple[str, dict[str, Any]]:
    more = {"failed": str(outcome.error)}
    if outcome.done is not None and outcome.profile is not None:
        run_dir, path = str(outcome.done.run_dir), str(outcome.path)
        more = json_object(outcome.profile, run_dir=run_dir, path=path)
    return outcome.kind, {**more, "takes": outcome.takes}


def _page(outcomes: Sequence[Outcome], run_dir: Path, options: SweepOptions) -> Page:
    """Return which kind serves this traffic best."""
    ended = {each.kind: each.profile for each in outcomes if each.profile is not None}
    runs = [each.done.outcome for each in outcomes if each.done is not None]
    page = several_page(ended, {}, subject=f"Sweep {run_dir}")
    chosen = page.tables[0].chosen or 0
    best = [each for each in outcomes if each.kind in ended][chosen]
    simulated = is_simulated(ended[best.kind])
    spent_s = sum(each.starts_s + each.replay_s for each in runs)
    took = f"{engine_time(spent_s, simulated=simulated)} on {len(ended)} kinds of nodes"
    failed = [f"{each.kind} failed: {each.error}" for each in outcomes if each.error]
    curves = [
        Section(f"Curve of {name}", tables=[curve_table(profile)])
        for name, profile in ended.items()
    ]
    return msgspec.structs.replace(
        page,
        aside="simulated, " * simulated + page.aside,
        facts=[*page.facts, ("takes", best.takes), ("took", took)],
        sections=[*page.sections, *curves],
        warnings=[*failed, *(text for each in runs for text in each.warnings)],
        run_dir=str(run_dir),
        next=after(ended[best.kind], best.path, base=options.base),
    )
