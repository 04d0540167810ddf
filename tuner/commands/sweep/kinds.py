"""``tuner sweep --ray``: a sweep on each kind of node of a Ray cluster, side by side."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tuner.commands.options import SweepOptions
from tuner.commands.shared.next_step import after, check_required
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import kept, making_sense, open_each, open_run
from tuner.commands.sweep.one_trace import (
    FinishedSweep,
    SweptTraffic,
    finished,
    keep_trace,
    one_servers,
    plan_of,
    sealed,
    starter_of,
    taken_from_base,
    traffic_of,
)
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import ArgumentValue
from tuner.errors import EngineError, RunError, TunerError, UndecidedError, UsageError
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import engine_time, is_simulated, percent, promised, with_share
from tuner.replay.measure import Measurement
from tuner.runs.cluster.share import Node, Share, share_of, usable
from tuner.runs.ladder import doubling
from tuner.runs.outcome import SweepOutcome
from tuner.system import interruption
from tuner.trace.trace import Trace
from tuner.views.live import Progress
from tuner.views.numbers import COLUMNS, cells
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import curve_table
from tuner.views.text import print_json, print_page

if TYPE_CHECKING:
    from tuner.runs.cluster.kinds import Description
    from tuner.runs.cluster.session import RaySession
    from tuner.runs.cluster.sweeps import Kind

LABEL = "tuner/kind"
"""Label of a node: which of several worlds it simulates."""


@dataclass(frozen=True, slots=True)
class KindOutcome:
    """The outcome of one kind of node."""

    kind: str
    takes: str
    """What an engine takes of such a node."""

    done: FinishedSweep | TunerError
    profile: Path
    sealed: ServingProfile | None = None
    """What was written there."""

    @property
    def numbers(self) -> Measurement | None:
        """Return the numbers of the chosen cap, for all of the traffic."""
        if isinstance(self.done, TunerError):
            return None
        outcome = self.done.outcome
        return outcome.conclusion.step(outcome.verdict.max_num_seqs).numbers


def run(options: SweepOptions) -> None:
    """Sweep on every kind of node, and compare them. Raises TunerError."""
    from tuner.runs.cluster.session import joined  # noqa: PLC0415 - imports ray

    assert options.ray is not None
    with ExitStack() as stack:
        session = stack.enter_context(joined(options.ray))
        result, run_dir = _swept(session, options, stack)
    _conclude(options, result, run_dir)


def _swept(
    session: "RaySession", options: SweepOptions, stack: ExitStack
) -> tuple[list[KindOutcome], Path]:
    from tuner.runs.cluster.sweeps import Job, sweep_all  # noqa: PLC0415 - imports ray

    began_s = time.monotonic()
    path = options.trace
    traffic = traffic_of(options, path)
    kinds, left_out = kinds_on(session, options, traffic.trace.header.model)
    if len(kinds) > 1 and options.slo is None:
        raise UsageError(
            f"{len(kinds)} kinds of nodes ({', '.join(kinds)}) are compared under one SLO",
            hint="Give it: --slo ttft=500ms,tpot=50ms. Without one each would derive its own.",
        )
    outputs = outputs_of(options.output, list(kinds))
    for output in outputs.values():
        profile.check_output(output, force=None)
    arguments = _resolved(session, kinds, options.ceiling)
    plans = plans_of(options, traffic.trace, kinds, arguments)
    parts = {name: one_servers(traffic, options, each.starter) for name, each in kinds.items()}
    book = open_run("sweep", options, _plan_of_all(plans, kinds))
    books = open_each(book, plans)
    progress = Progress(traffic.settings.budget_s, doubling(options.ceiling))
    for warning in (*traffic.warnings, *session.cautions(), *left_out):
        progress.warn(warning)
    for text in taken_from_base(options):
        progress.stage(text)
    with kept(book, *books.values()):
        for name, each in parts.items():
            keep_trace(each, books[name])
        jobs = {
            name: (kind, Job(parts[name].requests, traffic.settings, kind.starter))
            for name, kind in kinds.items()
        }
        watchers = {name: progress.named(name) for name in kinds}
        with progress:
            outcomes = interruption.run(sweep_all(session, jobs, books, watchers))
    stack.close()
    wall_s = time.monotonic() - began_s
    done = {
        name: done_on(kinds[name], outcome, parts[name], books[name].run_dir, wall_s)
        for name, outcome in outcomes.items()
    }
    return [
        KindOutcome(name, str(kind.share), done[name], outputs[name])
        for name, kind in kinds.items()
    ], book.run_dir


def done_on(
    kind: "Kind",
    outcome: SweepOutcome | TunerError,
    part: SweptTraffic,
    run_dir: Path,
    wall_s: float,
) -> FinishedSweep | TunerError:
    """Return what a kind's sweep came to, as far as it came."""
    if isinstance(outcome, TunerError):
        return outcome
    return finished(outcome, part, kind.starter, run_dir, wall_s)


def outputs_of(output: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return where each kind's profile goes: beside ``output``, called after the kind too."""
    suffix = output.suffix or ".yaml"
    return {name: output.with_name(f"{output.stem}-{name}{suffix}") for name in names}


def _resolved(
    session: "RaySession", kinds: "Mapping[str, Kind]", ceiling: int
) -> dict[str, Mapping[str, ArgumentValue]]:
    """Return each kind's engine arguments, as a node of it resolves them."""
    from tuner.runs.cluster.sweeps import resolved  # noqa: PLC0415 - imports ray

    nodes = {node.id: node for node in session.nodes()}
    result: dict[str, Mapping[str, ArgumentValue]] = {}
    for name, kind in kinds.items():
        first = next(iter(kind.nodes))
        answer = session.ask(resolved, [nodes[first]], kind.starter, ceiling)[first]
        if isinstance(answer, Exception):
            answer = (str(answer), "Look into Ray's logs of that node.")
        if isinstance(answer, tuple):
            raise EngineError(f"{name}: {answer[0]}", hint=answer[1])
        result[name] = answer
    return result


def plans_of(
    options: SweepOptions,
    trace: Trace,
    kinds: "Mapping[str, Kind]",
    arguments: Mapping[str, Mapping[str, ArgumentValue]],
) -> dict[str, dict[str, Any]]:
    """Return what each kind's measurements rest on."""
    return {
        name: plan_of(options, trace, arguments[name], kind.starter) | {"device": dict(kind.device)}
        for name, kind in kinds.items()
    }


def _plan_of_all(
    plans: Mapping[str, Mapping[str, Any]], kinds: "Mapping[str, Kind]"
) -> dict[str, Any]:
    first = next(iter(plans.values()))
    common = {k: v for k, v in first.items() if k not in {"engine_arguments", "device"}}
    return common | {"kinds": {name: dict(each.device) for name, each in kinds.items()}}


def _conclude(options: SweepOptions, outcomes: Sequence[KindOutcome], run_dir: Path) -> None:
    """Write the profiles and print all. Raises what ended the sweeps where none was ended well."""
    with making_sense(run_dir, is_stored=True):
        outcomes = [_written(item) for item in outcomes]
    failed = [item.done for item in outcomes if isinstance(item.done, TunerError)]
    if len(failed) == len(outcomes):
        raise failed[0]
    page = page_of(outcomes, run_dir, options)
    keep_result(run_dir, json_of(outcomes, run_dir), page)
    if options.json:
        print_json(json_of(outcomes, run_dir))
    else:
        print_page(page)
    for each in outcomes:
        if each.sealed is not None:
            check_required(each.sealed, each.profile, cure="")
    done = [item.done.outcome for item in outcomes if isinstance(item.done, FinishedSweep)]
    if not any(outcome.verdict.is_defended for outcome in done):
        raise UndecidedError(
            done[0].verdict.reason, hint="The profiles are safe to serve; give a larger --budget."
        )


def _written(outcome: KindOutcome) -> KindOutcome:
    """Write the profile of a kind whose sweep ended."""
    if isinstance(outcome.done, TunerError):
        return outcome
    result = sealed(outcome.done)
    profile.keep(result, outcome.done.run_dir)
    profile.check_output(outcome.profile, force=None)
    profile.save(result, outcome.profile)
    return replace(outcome, sealed=result)


def kinds_on(
    session: "RaySession", options: SweepOptions, header_model: str | None
) -> tuple["dict[str, Kind]", list[str]]:
    """Return the kinds of nodes that can serve, and why others cannot. Raises RunError when there
    is none."""
    from tuner.runs.cluster.kinds import described, lines_of, named  # noqa: PLC0415 - imports ray
    from tuner.runs.cluster.sweeps import Kind  # noqa: PLC0415

    nodes = {node.id: node for node in session.nodes()}
    text, left_out = described(session, list(nodes.values()))
    worlds = worlds_of(options)
    groups = named(text) if options.world is None else of_worlds(worlds, nodes, text, left_out)
    result: dict[str, Kind] = {}
    for name, members in groups.items():
        starter = starter_of(replace(options, world=worlds.get(name)), header_model)
        share = _share(options, header_model, text[members[0]])
        here = {node.id: node.name for node in usable([nodes[each] for each in members], share)}
        left_out |= {
            each: f"an engine takes {share}, more than it has"
            for each in members
            if each not in here
        }
        if here:
            device = text[members[0]].device
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
    if options.world is None:
        return {}
    result: dict[str, Path] = {}
    for part in str(options.world).split(","):
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


def _share(options: SweepOptions, header_model: str | None, node: "Description") -> Share:
    if options.world is not None:
        return share_of({}, on_gpus=False)
    arguments = engine_arguments(
        model=options.model,
        base=options.base,
        header_model=header_model,
        overrides=options.overrides,
    )
    # of data-parallel ranks one is measured
    one_rank = {k: v for k, v in arguments.items() if not k.startswith("data_parallel_")}
    on_gpus = node.device.get("kind") == "gpu"
    return share_of(one_rank, on_gpus=on_gpus)


def json_of(outcomes: Sequence[KindOutcome], run_dir: Path) -> dict[str, Any]:
    """Return the object that ``tuner sweep --ray --json`` prints."""
    kinds: dict[str, Any] = {}
    for each in outcomes:
        common: dict[str, Any] = {"takes": each.takes}
        if isinstance(each.done, TunerError):
            kinds[each.kind] = {**common, "failed": str(each.done)}
        else:
            kinds[each.kind] = {**each.done.as_json(each.profile), **common}
    return {"kinds": kinds, "run_dir": str(run_dir)}


def page_of(outcomes: Sequence[KindOutcome], run_dir: Path, options: SweepOptions) -> Page:
    """Return which kind serves this traffic best."""
    best = min(outcomes, key=_rank)
    assert isinstance(best.done, FinishedSweep)
    assert best.sealed is not None
    ended = [each.done.outcome for each in outcomes if isinstance(each.done, FinishedSweep)]
    facts = [("gives", _in_words(best))]
    if beside := "; ".join(
        f"{each.kind}: {_in_words(each)}" for each in outcomes if each is not best
    ):
        facts.append(("beside", beside))
    simulated = is_simulated(best.sealed)
    spent_s = sum(sum(each.starts_s) + each.replay_s for each in ended)
    took = engine_time(spent_s, simulated=simulated)
    facts.append(("took", f"{took} on {len(ended)} kind{'s' * (len(ended) != 1)}"))
    aside = "serves most in time"
    title = f"{best.kind} with max_num_seqs {best.done.outcome.verdict.max_num_seqs}"
    failed = [
        f"{each.kind} failed: {each.done}" for each in outcomes if isinstance(each.done, TunerError)
    ]
    return Page(
        subject=f"Sweep {run_dir}",
        title=with_share(promised(best.sealed).attainment, title),
        aside="simulated, " * simulated + ("the only kind that ran" if len(ended) == 1 else aside),
        facts=facts,
        sections=[
            Section(
                "The same traffic on each kind, at its own cap", tables=[_table(outcomes, best)]
            ),
            *(
                Section(f"Curve of {each.kind}", tables=[curve_table(each.sealed)])
                for each in outcomes
                if each.sealed is not None
            ),
        ],
        warnings=[*failed, *(text for each in ended for text in each.warnings)],
        run_dir=str(run_dir),
        next=after(best.sealed, best.profile, base=options.base),
    )


MEASURED = ("attainment", "goodput_rps", "tpot_p95_s")


def _table(outcomes: Sequence[KindOutcome], best: KindOutcome) -> Table:
    columns = [
        Column("kind", "kind"), Column("takes", "takes"), Column("verdict", "verdict"),
        *(COLUMNS[name] for name in ("max_num_seqs", *MEASURED)),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for each in outcomes:
        numbers, done = each.numbers, each.done
        if numbers is None or isinstance(done, TunerError):
            rows.append([each.kind, each.takes, "failed", *[None] * 4])
            continue
        verdict = done.outcome.verdict
        row: list[Cell] = [each.kind, each.takes, verdict.kind, verdict.max_num_seqs]
        rows.append([*row, *cells(numbers, *MEASURED)])
    return Table(columns, rows, chosen=list(outcomes).index(best))


def _rank(outcome: KindOutcome) -> float:
    """Return what sorts kinds: the share that they serve in time."""
    return math.inf if outcome.numbers is None else -outcome.numbers.attainment


def _in_words(outcome: KindOutcome) -> str:
    if outcome.numbers is None:
        return f"failed ({outcome.done})"
    return f"{percent(outcome.numbers.attainment)} meet the SLO"
