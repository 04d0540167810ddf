"""``tuner sweep --ray``: a sweep on each kind of node of a Ray cluster, side by side."""

import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from tuner.commands.options import SweepOptions
from tuner.commands.shared.next_step import after
from tuner.commands.shared.run_folder import finish, kept, open_run
from tuner.commands.sweep import Swept, check_decided, job_on, keep_trace, sealed, starter_of
from tuner.engines.sim.start import SimStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import RunError, TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.summary import is_simulated
from tuner.runs.cluster.nodes import describe_node, lines_of, named, share_of, why_not
from tuner.runs.cluster.session import RaySession, joined
from tuner.runs.cluster.sweeps import Kind, Part, sweep_all
from tuner.runs.journal import Journal, opened
from tuner.runs.result import json_object
from tuner.system import files, interruption
from tuner.trace.trace import load
from tuner.views.live import Progress
from tuner.views.profile import several_page

LABEL = "tuner/kind"
"""Label of a node: which of several worlds it simulates, by the name of the world's file."""


def run(options: SweepOptions) -> None:
    """Sweep on every kind of node at the same time, and compare them. Raises TunerError."""
    if options.dry_run or options.metrics_port:
        raise UsageError(
            "--dry-run and --metrics-port are for a sweep on this machine", hint="Leave out --ray."
        )
    began_s, trace, output = time.monotonic(), load(options.trace), options.output
    with joined(str(options.ray)) as session:
        kinds, left_out = kinds_on(session, options, trace.header.model)
        if len(kinds) > 1 and options.slo is None:
            raise UsageError(
                f"{len(kinds)} kinds of nodes ({', '.join(kinds)}) are compared under one SLO",
                hint="Give it: --slo ttft=500ms,tpot=50ms. Without one each would derive its own.",
            )
        paths = {name: output.with_name(f"{output.stem}-{name}{output.suffix}") for name in kinds}
        for path in paths.values():
            profiles.check_output(path)
        jobs = {name: job_on(options, trace, kind.starter, began_s) for name, kind in kinds.items()}
        first = next(iter(jobs.values()))
        devices = {name: dict(kind.device) for name, kind in kinds.items()}
        book = open_run("sweep", options, {**first.plan, "kinds": devices})
        words, progress = book.planned.command, Progress(first.settings.budget_s)
        books = dict[str, Journal]()
        for name, job in jobs.items():
            part_dir = book.run_dir / name
            files.make_own(part_dir)  # a link there leads to somebody else's
            books[name] = opened(part_dir, job.plan, command=words, is_part=True)
        with kept(book, *books.values()):
            progress.warn(*first.warnings, *session.cautions(), *left_out)
            parts = dict[str, Part]()
            for name, job in jobs.items():
                keep_trace(job, books[name])
                watcher = progress.named(name)
                parts[name] = Part(kinds[name], job.requests, job.settings, books[name], watcher)
            with progress:
                results = interruption.run(sweep_all(session, parts))
            failed = {n: each for n, each in results.items() if isinstance(each, TunerError)}
            if len(failed) == len(results):
                raise next(iter(failed.values()))
            ended = {
                name: sealed(result, first.warnings, began_s)
                for name, result in results.items()
                if not isinstance(result, TunerError)
            }
    for name, done in ended.items():
        profiles.keep(done.profile, books[name].run_dir)
        profiles.save(done.profile, paths[name])
    _conclude(options, ended, failed, paths, book.run_dir)


def kinds_on(
    session: RaySession, options: SweepOptions, header_model: str | None
) -> tuple[dict[str, Kind], list[str]]:
    """Return the kinds of nodes that can serve, and why others cannot. Raises RunError when there
    is none, UsageError for a world that no node is of."""
    nodes = {node.id: node for node in session.nodes()}
    replies = session.ask(describe_node, list(nodes.values()))
    left_out = {node: why for node, reply in replies.items() if (why := why_not(reply))}
    known = {node: reply for node, reply in replies.items() if node not in left_out}
    worlds = {Path(text).stem: Path(text) for text in str(options.world or "").split(",") if text}
    groups: dict[str, list[str]] = {name: [] for name in worlds} if worlds else named(known)
    for each in known if worlds else ():
        label = nodes[each].labels.get(LABEL, "") if len(worlds) > 1 else next(iter(worlds))
        if label in groups:
            groups[label].append(each)
        else:
            left_out[each] = f"its label {LABEL} names no --world"
    result: dict[str, Kind] = {}
    for name, members in groups.items() if known else ():
        if not members:
            raise UsageError(
                f"--world {worlds[name]}: no node has the label {LABEL}={name}",
                hint=f"Leave it out, or start a node with --labels {LABEL}={name}.",
            )
        starter = starter_of(replace(options, world=worlds.get(name)), header_model)
        device, share = known[members[0]].device, share_of({}, on_gpus=False)
        if isinstance(starter, VllmStarter):
            share = share_of(starter.arguments, on_gpus=device.get("kind") == "gpu")
        elif isinstance(starter, SimStarter):
            device = starter.device
        here = {each: nodes[each].name for each in members if share.fits(nodes[each])}
        few = f"an engine takes {share}, more than it has"
        left_out |= {each: few for each in members if each not in here}
        if here:
            result[name] = Kind(name, here, device, share, starter)
    if not result:
        raise RunError(
            f"--ray {options.ray}: none of its {len(nodes)} nodes can be used: "
            f"{'; '.join(sorted(set(left_out.values())))}",
            hint="docs/more.md says what a node needs.",
        )
    return result, lines_of(list(nodes.values()), left_out)


def _conclude(
    options: SweepOptions,
    ended: Mapping[str, Swept],
    failed: Mapping[str, TunerError],
    paths: Mapping[str, Path],
    run_dir: Path,
) -> None:
    """Print which kind serves this traffic best."""
    page = several_page({n: each.profile for n, each in ended.items()}, {}, subject="Kinds")
    best = list(ended)[page.tables[0].chosen or 0]
    page = replace(
        page,
        aside="simulated, " * is_simulated(ended[best].profile) + page.aside,
        warnings=[
            *(f"{name} failed: {error}" for name, error in failed.items()),
            *page.warnings,
            *(each for done in ended.values() for each in done.page.warnings),
        ],
        run_dir=str(run_dir),
        next=after(ended[best].profile, paths[best], base=options.base),
    )
    result = {name: {"failed": str(error)} for name, error in failed.items()} | {
        name: json_object(done.profile, run_dir=done.page.run_dir, path=str(paths[name]))
        for name, done in ended.items()
    }
    finish(options, {"kinds": result, "run_dir": str(run_dir)}, page, run_dir)
    check_decided(ended[best].with_next(page.next), paths[best])
