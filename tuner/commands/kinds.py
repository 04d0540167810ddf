"""``tuner sweep --ray``: a sweep on each kind of node of a Ray cluster, side by side."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tuner.commands.options import SweepOptions
from tuner.commands.shared.next_step import after, check_required
from tuner.commands.shared.results import finish
from tuner.commands.shared.run_folder import kept, making_sense, open_each, open_run
from tuner.commands.sweep import Job, Swept, finished, job_on, keep_trace, sealed, starter_of
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, RunError, TunerError, UndecidedError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import is_simulated
from tuner.runs.cluster.nodes import (
    Description,
    Node,
    describe_node,
    lines_of,
    named,
    share_of,
    why_not,
)
from tuner.runs.result import json_object
from tuner.system import interruption
from tuner.trace.trace import Trace, load
from tuner.views.live import Progress
from tuner.views.page import Section
from tuner.views.profile import curve_table, several_page

if TYPE_CHECKING:
    from tuner.runs.cluster.session import RaySession
    from tuner.runs.cluster.sweeps import Kind

LABEL = "tuner/kind"
"""Label of a node: which of several worlds it simulates, by the name of the world's file."""


Ended = dict[str, tuple[Swept, ServingProfile]]
"""Name of a kind → its finished sweep, and the profile that was written."""


def run(options: SweepOptions) -> None:
    """Sweep on every kind of node at the same time, and compare them. Raises TunerError."""
    from tuner.runs.cluster.session import joined  # noqa: PLC0415 - imports ray

    if options.dry_run or options.metrics_port:
        raise UsageError(
            "--dry-run and --metrics-port are for a sweep on this machine", hint="Leave out --ray."
        )
    trace = load(options.trace)
    with joined(str(options.ray)) as session:
        kinds, left_out = kinds_on(session, options, trace.header.model)
        if len(kinds) > 1 and options.slo is None:
            raise UsageError(
                f"{len(kinds)} kinds of nodes ({', '.join(kinds)}) are compared under one SLO",
                hint="Give it: --slo ttft=500ms,tpot=50ms. Without one each would derive its own.",
            )
        output = options.output
        paths = {name: output.with_name(f"{output.stem}-{name}{output.suffix}") for name in kinds}
        for path in paths.values():
            profiles.check_output(path)
        ended, failed, run_dir = _swept(session, options, trace, kinds, left_out)
    for name, (done, profile) in ended.items():
        profiles.keep(profile, done.run_dir)
        profiles.check_output(paths[name])
        profiles.save(profile, paths[name])
    _conclude(options, ended, failed, paths, run_dir)


def _swept(
    session: "RaySession",
    options: SweepOptions,
    trace: Trace,
    kinds: "Mapping[str, Kind]",
    left_out: Sequence[str],
) -> tuple[Ended, dict[str, TunerError], Path]:
    """Return what ended well, what did not, and the folder of the run."""
    from tuner.runs.cluster import sweeps  # noqa: PLC0415 - imports ray

    began_s = time.monotonic()
    jobs = {name: job_on(options, trace, kind.starter, began_s) for name, kind in kinds.items()}
    own = {name: _engine_and_device(session, kinds[name], job) for name, job in jobs.items()}
    first = next(iter(jobs.values()))
    devices = {name: each["device"] for name, each in own.items()}
    book = open_run("sweep", options, {**first.plan, "kinds": devices})
    books = open_each(book, {name: {**job.plan, **own[name]} for name, job in jobs.items()})
    progress = Progress(first.settings.budget_s)
    ended, failed = Ended(), dict[str, TunerError]()
    with kept(book, *books.values()):
        for warning in (*first.warnings, *session.cautions(), *left_out):
            progress.warn(warning)
        for name, job in jobs.items():
            keep_trace(job, books[name])
        parts = {
            name: sweeps.Part(
                kinds[name], job.requests, job.settings, books[name], progress.named(name)
            )
            for name, job in jobs.items()
        }
        with progress:
            results = interruption.run(sweeps.sweep_all(session, parts))
        for name, result in results.items():
            if isinstance(result, TunerError):
                failed[name] = result
                continue
            done = finished(jobs[name], result, books[name])
            with making_sense(book.run_dir, is_stored=True):
                ended[name] = done, sealed(done)
    return ended, failed, book.run_dir


def _engine_and_device(session: "RaySession", kind: "Kind", job: Job) -> dict[str, Any]:
    """Return what of a plan is a kind's own: arguments as a node of it resolves them, and its
    device."""
    from tuner.runs.cluster.sweeps import resolved  # noqa: PLC0415 - imports ray

    first = next(iter(kind.nodes))
    (node,) = (node for node in session.nodes() if node.id == first)
    answer = session.ask(resolved, [node], kind.starter, job.options.ceiling)[first]
    if isinstance(answer, Exception):
        answer = (str(answer), "Look into Ray's logs of that node.")
    if isinstance(answer, tuple):
        raise EngineError(f"{kind.name}: {answer[0]}", hint=answer[1])
    return {"engine_arguments": dict(answer), "device": dict(kind.device)}


def kinds_on(
    session: "RaySession", options: SweepOptions, header_model: str | None
) -> tuple["dict[str, Kind]", list[str]]:
    """Return the kinds of nodes that can serve, and why others cannot. Raises RunError when there
    is none."""
    from tuner.runs.cluster.sweeps import Kind  # noqa: PLC0415 - imports ray

    nodes = {node.id: node for node in session.nodes()}
    replies = session.ask(describe_node, list(nodes.values()))
    left_out = {node: why for node, reply in replies.items() if (why := why_not(reply))}
    known = {node: reply for node, reply in replies.items() if node not in left_out}
    worlds = {Path(text).stem: Path(text) for text in str(options.world or "").split(",") if text}
    groups = _simulating(worlds, nodes, known, left_out) if worlds else named(known)
    result: dict[str, Kind] = {}
    for name, members in groups.items():
        starter = starter_of(msgspec.structs.replace(options, world=worlds.get(name)), header_model)
        arguments = starter.arguments if isinstance(starter, VllmStarter) else {}
        device = known[members[0]].device
        share = share_of(arguments, on_gpus=bool(arguments) and device.get("kind") == "gpu")
        here = {each: nodes[each].name for each in members if share.fits(nodes[each])}
        few = f"an engine takes {share}, more than it has"
        left_out |= {each: few for each in members if each not in here}
        if here:
            device = cast("Any", starter).device if worlds else device
            result[name] = Kind(name, here, device, share, starter)
    if not result:
        raise RunError(
            f"--ray {options.ray}: none of its {len(nodes)} nodes can be used: "
            f"{'; '.join(sorted(set(left_out.values())))}",
            hint="docs/more.md says what a node needs.",
        )
    return result, lines_of(list(nodes.values()), left_out)


def _simulating(
    worlds: Mapping[str, Path],
    nodes: Mapping[str, Node],
    known: Mapping[str, Description],
    left_out: dict[str, str],
) -> dict[str, list[str]]:
    """Return world → nodes: all of them, or by their label where there are several worlds. Raises
    UsageError for a world that no node is of."""
    if len(worlds) == 1:
        return {name: list(known) for name in worlds if known}
    groups: dict[str, list[str]] = {}
    for each in known:
        groups.setdefault(nodes[each].labels.get(LABEL, "none"), []).append(each)
    for name in worlds.keys() - groups.keys():
        raise UsageError(
            f"--world {worlds[name]}: no node has the label {LABEL}={name}, only "
            f"{', '.join(sorted(groups)) or 'none'}",
            hint=f"Leave it out, or start a node with --labels {LABEL}={name}.",
        )
    for label in groups.keys() - worlds.keys():
        why = f"its label {LABEL} is {label}, which names no --world"
        left_out |= dict.fromkeys(groups[label], why)
    return {name: groups[name] for name in worlds}


def _conclude(
    options: SweepOptions,
    ended: Ended,
    failed: Mapping[str, TunerError],
    paths: Mapping[str, Path],
    run_dir: Path,
) -> None:
    """Print which kind serves this traffic best. Raises what ended the sweeps where none was ended
    well."""
    if not ended:
        raise next(iter(failed.values()))
    result: dict[str, Any] = {name: {"failed": str(error)} for name, error in failed.items()}
    for name, (done, profile) in ended.items():
        own_dir, path = str(done.run_dir), str(paths[name])
        result[name] = json_object(profile, run_dir=own_dir, path=path)
    by_name = {name: profile for name, (_, profile) in ended.items()}
    page = several_page(by_name, {}, subject=f"Sweep {run_dir}")
    best = list(ended)[page.tables[0].chosen or 0]
    curves = [
        Section(f"Curve of {name}", tables=[curve_table(profile)])
        for name, profile in by_name.items()
    ]
    warnings = [f"{name} failed: {error}" for name, error in failed.items()]
    page = msgspec.structs.replace(
        page,
        aside="simulated, " * is_simulated(by_name[best]) + page.aside,
        sections=[*page.sections, *curves],
        warnings=[
            *warnings,
            *page.warnings,
            *(text for done, _ in ended.values() for text in done.warnings),
        ],
        run_dir=str(run_dir),
        next=after(by_name[best], paths[best], base=options.base),
    )
    finish(options, {"kinds": result, "run_dir": str(run_dir)}, page, run_dir)
    for name, profile in by_name.items():
        check_required(profile, paths[name], cure="")
    verdicts = [done.outcome.verdict for done, _ in ended.values()]
    if not any(verdict.is_defended for verdict in verdicts):
        raise UndecidedError(
            verdicts[0].reason, hint="The profiles are safe to serve; give a larger --budget."
        )
