"""``tuner sweep`` with several traces: one engine, a profile for each trace and one for all."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from tuner.commands.shared import dry_run
from tuner.commands.shared.console import console_for, plain_table, print_end, shown
from tuner.commands.shared.kept_result import keep_result
from tuner.commands.shared.next_step import after, check_required, check_served, command
from tuner.commands.shared.run_folder import Where, kept, open_each, open_run, parts_of
from tuner.commands.sweep.ceiling import with_ceiling
from tuner.commands.sweep.one_trace import (
    FinishedSweep,
    SweptTraffic,
    beside_now,
    completed,
    device_of,
    dry_run_of,
    execute_on,
    finished,
    keep_trace,
    one_servers,
    plan_of,
    ranks_of,
    rescored,
    sealed,
    starter_of,
    taken_from_base,
    traffic_of,
)
from tuner.commands.sweep.options import SweepOptions
from tuner.commands.sweep.results import SeveralResult
from tuner.commands.sweep.view import (
    TABLE_WIDTH,
    NamedProgress,
    RunProgress,
    again,
    keep_answer,
    print_of,
    render,
)
from tuner.errors import RunError, TargetError, UndecidedError, UsageError
from tuner.live.exporter import Exporter
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import KINDS, UNSURE, engine_time, first_said, is_simulated, promised
from tuner.profile.verdict_block import VerdictBlock
from tuner.runs import journal
from tuner.runs.evidence import Evidence
from tuner.runs.sweep.multi_trace import Member, multi_trace_outcome, sweep_traces
from tuner.runs.sweep.shared_cap import (
    MultiTraceOutcome,
    Price,
    at_cap,
    busiest,
    overloaded,
    reason_of,
    shared_outcome,
)
from tuner.traffic.window import parse_duration_s

SHARED = "shared"
"""Name of the profile for all in a folder."""

LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class ProfilePaths:
    """The paths that the profiles are written to."""

    of_trace: Mapping[str, Path]
    of_all: Path

    def check(self, *, force: bool) -> None:
        """Refuse what must not be written over. Raises TargetError."""
        for path in (*self.of_trace.values(), self.of_all):
            profile.check_output(path, force=force)


@dataclass(frozen=True, slots=True)
class MultiTraceSweep:
    """All that is told of a sweep of several traces."""

    found: MultiTraceOutcome
    done: Mapping[str, FinishedSweep]
    profiles: Mapping[str, Path]
    sealed: Mapping[str, ServingProfile]
    shared: tuple[ServingProfile, Path] | None
    """The profile for all, and where it is; None where no cap serves all of them."""

    starts_s: Sequence[float]
    run_dir: Path


def run(options: SweepOptions) -> None:
    """Tune every trace on one engine, and say what they may share. Raises TunerError."""
    began_s = time.monotonic()
    paths = dict(zip(names_of(options.traces), options.traces, strict=True))
    outputs = outputs_of(options.output, list(paths))
    traffics = {name: traffic_of(options, path) for name, path in paths.items()}
    _check_different(paths, traffics)
    starter = starter_of(options, _model_of(options, paths, traffics))
    traffics = {name: one_servers(one, options, starter) for name, one in traffics.items()}
    options, resolved, ceiling = with_ceiling(options, [*traffics.values()], starter)
    traffics = dict(zip(traffics, resolved, strict=True))
    if options.dry_run:
        for one in resolved:
            dry_run.show(dry_run_of(options, one, starter, ceiling), as_json=options.json)
        return
    arguments, ranks = starter.resolve(max_num_seqs=options.ceiling), ranks_of(starter)
    plans = {
        name: plan_of(options, one.trace, arguments, ranks=ranks) | {"beside": len(paths) - 1}
        for name, one in traffics.items()
    }
    _make_folder(options.output)
    outputs.check(force=options.force)
    exporter = Exporter(options.metrics_port) if options.metrics_port else None
    called = Path(_folder_name(list(paths)))
    where = Where(called, options.run_dir, resume=options.resume, asked=options)
    book = open_run(where, _plan_of_all(plans))
    books = open_each(book, plans)
    execute = execute_on(starter, book, tuple(books.values()))
    progress = RunProgress(next(iter(traffics.values())).settings, exporter)
    for said in [*ceiling, *taken_from_base(options)]:
        progress.stage(said)
    members = [
        Member(name, one.requests, one.settings, books[name], NamedProgress(progress, name))
        for name, one in traffics.items()
    ]
    with closing(exporter) if exporter else nullcontext(), kept(book, where, [*books.values()]):
        for name, one in traffics.items():
            keep_trace(one, books[name])
            for warning in one.warnings:
                progress.warn(f"{name}: {warning}")
        read_device = progress.reading(device_of(starter, book.run_dir))
        with progress:
            found = execute(sweep_traces(members, starter, book, read_device=read_device))
        wall_s = time.monotonic() - began_s
        done = {
            name: finished(
                completed(beside_now(found.outcomes[name], starter, options), starter),
                one,
                starter,
                books[name].run_dir,
                wall_s,
            )
            for name, one in traffics.items()
        }
        _conclude(options, outputs, found, done, book, keep=True)


def rescore(options: SweepOptions, book: journal.Journal) -> None:
    """Rescore a stored run of several traces. No engine. Raises RunError, InputError."""
    try:
        names = parts_of(book)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"{book.run_dir}/journal.jsonl:1: the plan makes no sense ({error!r})",
            hint="Name the run directory of a sweep of this version of tuner.",
        ) from error
    outputs = outputs_of(options.output, names)
    done = {name: rescored(options, journal.read(book.run_dir / name)) for name in names}
    found = multi_trace_outcome({name: one.outcome for name, one in done.items()})
    _make_folder(options.output)
    outputs.check(force=options.force)
    _conclude(options, outputs, found, done, book, keep=False)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each trace: its file's, with its folder's where files are called
    alike. Raises UsageError when a file is given twice, or when names stay alike.

    >>> names_of([Path("/logs/mon/day.jsonl"), Path("/logs/tue/day.jsonl"), Path("night.jsonl")])
    ['mon-day', 'tue-day', 'night']
    """
    for place, path in enumerate(paths):
        if path.resolve() in {other.resolve() for other in paths[:place]}:
            raise UsageError(f"--trace {path}: is given twice", hint="Name each trace once.")
    parts = [(*path.absolute().parts[1:-1], path.stem) for path in paths]
    depths = [1] * len(paths)
    while True:
        names = ["-".join(of_path[-depth:]) for of_path, depth in zip(parts, depths, strict=True)]
        alike = [name.casefold() for name in names]  # as some file systems see them
        clash = [place for place, name in enumerate(alike) if alike.count(name) > 1]
        if not clash:
            return names
        if all(depths[place] >= len(parts[place]) for place in clash):
            raise UsageError(
                f"--trace {paths[clash[0]]} and {paths[clash[1]]}: their profiles would be "
                "called the same",
                hint="Rename one of the files.",
            )
        for place in clash:
            depths[place] += 1


def outputs_of(output: Path, names: Sequence[str]) -> ProfilePaths:
    """Return where profiles go: into a folder (there already, or named without a suffix), or
    beside the file for all. Raises UsageError when two would be the same."""
    if output.is_dir() or not output.suffix:
        if SHARED in {name.casefold() for name in names}:
            raise UsageError(
                f"-o {output}: {SHARED}.yaml would be that trace's profile and the one for all",
                hint="Rename the trace, or name a file: -o profile.yaml.",
            )
        return ProfilePaths(
            {name: output / f"{name}.yaml" for name in names}, output / "shared.yaml"
        )
    beside = {name: output.with_name(f"{output.stem}-{name}{output.suffix}") for name in names}
    return ProfilePaths(beside, output)


def _make_folder(output: Path) -> None:
    if output.suffix or output.exists():
        return
    try:
        output.mkdir()
    except OSError as error:
        raise TargetError(
            f"{output}: cannot be made ({error.strerror})", hint="Make the folder, or name another."
        ) from error


def _folder_name(names: Sequence[str]) -> str:
    """Return what the run's folder is called after, as a file's name."""
    joined = "+".join(names)
    if len(joined) > LONGEST_NAME:
        joined = f"{names[0]}+{len(names) - 1}"
    return f"{joined}.jsonl"


def _check_different(paths: Mapping[str, Path], traffics: Mapping[str, SweptTraffic]) -> None:
    seen: dict[str, str] = {}
    for name, one in traffics.items():
        other = seen.setdefault(one.trace.digest, name)
        if other != name:
            raise UsageError(
                f"--trace {paths[other]} and {paths[name]} hold the same requests",
                hint="Name each trace once.",
            )


def _model_of(
    options: SweepOptions, paths: Mapping[str, Path], traffics: Mapping[str, SweptTraffic]
) -> str | None:
    """Return the model that the traces' headers name. Raises UsageError when they differ."""
    named = {name: model for name, one in traffics.items() if (model := one.trace.header.model)}
    for name, model in named.items():
        first = next(iter(named))
        if model != named[first] and options.model is None and options.base is None:
            raise UsageError(
                f"{paths[first]} is of model {named[first]}, {paths[name]} of {model}",
                hint="Say which one serves all of them: --model or --base.",
            )
    return next(iter(named.values()), None)


def _plan_of_all(plans: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    first = next(iter(plans.values()))
    of_trace = {"trace_digest", "trace_block_size"}
    common = {key: value for key, value in first.items() if key not in of_trace}
    return common | {"traces": {name: plan["trace_digest"] for name, plan in plans.items()}}


def _conclude(  # noqa: PLR0913 - what was asked, found and measured
    options: SweepOptions,
    outputs: ProfilePaths,
    found: MultiTraceOutcome,
    done: Mapping[str, FinishedSweep],
    book: journal.Journal,
    *,
    keep: bool,
) -> None:
    """Write the profiles and print all."""
    profiles = {outputs.of_trace[name]: sealed(one) for name, one in done.items()}
    shared = None
    if found.shared_cap.kind != "separate":
        cap = found.shared_cap.max_num_seqs
        leader = busiest(found.outcomes, cap)
        one = replace(done[leader], outcome=shared_outcome(found))
        words = f"the numbers are those of {leader}, the busiest of {', '.join(done)} at {cap}"
        at_it = {
            name: replace(each, outcome=at_cap(each.outcome, cap)).all_warnings
            for name, each in done.items()
        }
        shared = sealed(one, [words, *named_warnings(at_it)])
        profiles[outputs.of_all] = shared
    if keep:
        for name, one in done.items():
            profile.keep(profiles[outputs.of_trace[name]], one.run_dir)
        if shared is not None:
            profile.keep(shared, book.run_dir)
    outputs.check(force=options.force)
    for path, each in profiles.items():
        profile.save(each, path)
    report = MultiTraceSweep(
        found=found,
        done=done,
        profiles=outputs.of_trace,
        sealed={name: profiles[outputs.of_trace[name]] for name in done},
        shared=None if shared is None else (shared, outputs.of_all),
        starts_s=Evidence(book).starts_s(),
        run_dir=book.run_dir,
    )
    if keep:
        _keep_answers(report, options)
    if options.json:
        sys.stdout.write(json.dumps(json_of(report), allow_nan=False) + "\n")
    else:
        render_all(report, options)
    for name, one in done.items():
        path = outputs.of_trace[name]
        check_required(profiles[path], path, cure=one.outcome.verdict.cure)
    if options.check:
        check_served(profiles)
    _refuse(found, outputs)


def _keep_answers(report: MultiTraceSweep, options: SweepOptions) -> None:
    """Keep in the folder of the run what all traces came to, and in those of its parts each."""
    for name, one in report.done.items():
        keep_answer(options, one, report.sealed[name], report.profiles[name])
    keep_result(report.run_dir, json_of(report), _block(report, options))


def named_warnings(said: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what is to be known of any of several traces, with the names of those it is said of.

    >>> named_warnings({"day": ["short"], "night": ["few requests", "short"]})
    ['day, night: short', 'night: few requests']
    """
    of_text: dict[str, list[str]] = {}
    for name, texts in said.items():
        for text in dict.fromkeys(texts):
            of_text.setdefault(text, []).append(name)
    return [f"{', '.join(names)}: {text}" for text, names in of_text.items()]


def _refuse(found: MultiTraceOutcome, outputs: ProfilePaths) -> None:
    """Raise UndecidedError where no one cap can be defended for all."""
    if found.shared_cap.kind == "separate":
        raise UndecidedError(
            f"{reason_of(found)}; {outputs.of_all} was not written",
            hint=separately(outputs.of_trace),
        )
    if found.shared_cap.kind == "inconclusive":
        raise UndecidedError(
            reason_of(found),
            hint=f"{outputs.of_all} is safe to serve but not defended; give a larger --budget.",
        )


def separately(outputs: Mapping[str, Path]) -> str:
    """Say what to do where traces cannot share a cap."""
    caps = " ".join(f"--at HH:MM={path}" for path in outputs.values())
    return (
        "Serve each apart with its own profile or, where they differ by the time of day, let one "
        f"server change its cap: tuner apply --live {caps}"
    )


def json_of(report: MultiTraceSweep) -> dict[str, Any]:
    """Return the object that ``tuner sweep --json`` prints of several traces: one of each as for a
    single trace, and what they share."""
    shared_cap = report.found.shared_cap
    found = {
        "shared": {
            "verdict": shared_cap.kind,
            "max_num_seqs": shared_cap.max_num_seqs,
            "interval": list(shared_cap.interval),
            "confidence": shared_cap.confidence,
            "reason": reason_of(report.found),
            "prices": [_price(one) for one in report.found.prices],
            "losses": {
                name: {str(cap): _finite(lost) for cap, lost in of_cap.items()}
                for name, of_cap in shared_cap.losses.items()
            },
            "profile": None if report.shared is None else str(report.shared[1]),
        },
        "traces": {name: one.as_json(report.profiles[name]) for name, one in report.done.items()},
        "engine_starts": len(report.starts_s),
        "engine_seconds": {"starts": sum(report.starts_s), "replay": _replay_s(report)},
        "run_dir": str(report.run_dir),
    }
    return SeveralResult.model_validate(found).model_dump(mode="json")


def _price(one: Price) -> dict[str, Any]:
    changes = {name: asdict(change) for name, change in one.changes.items()}
    return {
        "trace": one.trace,
        "max_num_seqs": one.own,
        "loss": _finite(one.loss),
        "attainment": one.attainment,
        "changes": changes,
    }


def _finite(lost: float) -> float | None:
    return lost if math.isfinite(lost) else None


def _replay_s(report: MultiTraceSweep) -> float:
    return sum(one.outcome.replay_s for one in report.done.values())


def render_all(report: MultiTraceSweep, options: SweepOptions) -> None:
    """Print what each trace comes to, then what they share."""
    console = console_for(at_least=TABLE_WIDTH)
    for name, one in report.done.items():
        console.print(f"[bold]{shown(name)}[/]", soft_wrap=True)
        path, profile = report.profiles[name], report.sealed[name]
        render(one.outcome, profile, print_of(options, one, profile, path))
        console.print()
    console.print("what each cap loses against a trace's own, in tolerances: 1 is too much")
    console.print(losses_table(report.found))
    console.print()
    print_end(console, report.run_dir, _block(report, options))


def _block(report: MultiTraceSweep, options: SweepOptions) -> VerdictBlock:
    """Return the verdict on one cap for all of the traces."""
    found, shared_cap = report.found, report.found.shared_cap
    parts = [one.decision for one in report.sealed.values()]
    rises = ("not_reached", shared_cap.max_num_seqs) in [(o.verdict, o.max_num_seqs) for o in parts]
    told = UNSURE.get(
        "not_reached" if rises and shared_cap.kind == "shared" else shared_cap.kind, "{}"
    )
    title = told.format(f"max_num_seqs {shared_cap.max_num_seqs} for {', '.join(report.done)}")
    alone = ", ".join(f"{one.own} for {one.trace}" for one in found.prices)
    aside = f"{shared_cap.kind}, confidence {shared_cap.confidence:.2f}"
    if shared_cap.kind == "separate":
        title = f"max_num_seqs {alone}; none for {'both' if len(report.done) == 2 else 'all'}"
    elif lost := ", ".join(overloaded(found)):
        title, aside = f"no max_num_seqs serves half of {lost} in time", KINDS["overloaded"]
    elif report.shared is not None:
        title = first_said(promised(report.shared[0]).attainment, title)
    _, _, reason = reason_of(found).partition(": ")
    low, high = shared_cap.interval
    simulated = is_simulated(next(iter(report.sealed.values())))
    took = engine_time(sum(report.starts_s) + _replay_s(report), simulated=simulated)
    rows = {"alone": alone, "why": reason, "range": f"{low} to {high} in 95 % of draws"}
    if alone in title:
        del rows["alone"]
    rows["took"] = f"{took}, {len(report.starts_s)} starts in all"
    aside = "simulated " * simulated + aside
    return VerdictBlock(title, aside, list(rows.items()), _next(report, options))


def _next(report: MultiTraceSweep, options: SweepOptions) -> str:
    kind, is_real = report.found.shared_cap.kind, options.engine != "sim"
    if kind == "inconclusive" and is_real and options.traces:
        budget_s = parse_duration_s(options.budget, option="--budget")
        return again(options, budget=f"{2 * budget_s:g}s")
    if lost := overloaded(report.found):
        return after(report.sealed[lost[0]], report.profiles[lost[0]])
    if report.shared is None:
        return command("show", next(iter(report.profiles.values())))
    profile, path = report.shared
    return after(profile, path, base=options.base)


def losses_table(found: MultiTraceOutcome) -> Table:
    """Return the losses of every trace at every cap that all of them were asked about."""
    losses = found.shared_cap.losses
    caps = sorted(set.intersection(*(set(of_cap) for of_cap in losses.values())))
    chosen = found.shared_cap.max_num_seqs
    table = plain_table("trace", *(f"{'> ' if cap == chosen else ''}{cap}" for cap in caps))
    for name, of_cap in losses.items():
        table.add_row(shown(name), *(_loss(of_cap[cap]) for cap in caps))
    return table


def _loss(lost: float) -> str:
    if math.isinf(lost):
        return "cut"
    return f"{lost:.1f}" if lost < 100 else ">100"
