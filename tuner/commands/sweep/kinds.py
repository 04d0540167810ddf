"""`tuner sweep --ray`: a sweep for each kind of node of a Ray cluster, and what they compare to."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.commands.shared.run_folder import Where, kept, open_each, open_run
from tuner.commands.sweep.done import Done, keep_trace, sealed, warnings_of
from tuner.commands.sweep.kinds_setup import kinds_on
from tuner.commands.sweep.kinds_view import Found, json_of, render_kinds
from tuner.commands.sweep.setup import (
    SweepOptions,
    Traffic,
    one_servers,
    plan_of,
    ranks_of,
    traffic_of,
)
from tuner.commands.sweep.several_view import Named
from tuner.commands.sweep.view import Progress
from tuner.engines.seam import ArgumentValue
from tuner.errors import EngineError, TunerError, UndecidedError, UsageError
from tuner.profile import profile
from tuner.runs.cluster.prices import check_used, parse_prices, price_of
from tuner.runs.outcome import SweepOutcome
from tuner.system import interruption
from tuner.trace.trace import Trace

if TYPE_CHECKING:
    from tuner.runs.cluster.session import RaySession
    from tuner.runs.cluster.sweeps import Kind


def run(options: SweepOptions) -> None:
    """Sweep on every kind of node, and say what each costs. Raises TunerError."""
    from tuner.runs.cluster.session import joined  # noqa: PLC0415 - imports ray

    assert options.ray is not None
    _check(options)
    prices = parse_prices(options.prices)
    with ExitStack() as stack:
        session = stack.enter_context(joined(options.ray))
        found, run_dir = _swept(session, options, prices, stack)
    _conclude(options, found, run_dir)


def _swept(
    session: "RaySession", options: SweepOptions, prices: Mapping[str, float], stack: ExitStack
) -> tuple[list[Found], Path]:
    from tuner.runs.cluster.sweeps import Sweep, sweep_all  # noqa: PLC0415 - imports ray

    began_s = time.monotonic()
    path = options.traces[0]
    traffic = traffic_of(options, path)
    kinds, left_out = kinds_on(session, options, traffic.trace.header.model)
    if len(kinds) > 1 and options.slo is None:
        raise UsageError(
            f"{len(kinds)} kinds of nodes ({', '.join(kinds)}) are compared under one SLO",
            hint="Give it: --slo ttft=500ms,tpot=50ms. Without one each would derive its own.",
        )
    check_used(prices, list(kinds))
    outputs = outputs_of(options.output, list(kinds))
    for output in outputs.values():
        profile.check_output(output, force=options.force)
    arguments = _resolved(session, kinds, options.ceiling)
    plans = plans_of(options, traffic.trace, kinds, arguments)
    parts = {name: one_servers(traffic, options, one.starter) for name, one in kinds.items()}
    where = Where(path, options.run_dir, resume=options.resume)
    book = open_run(where, _plan_of_all(plans, kinds))
    books = open_each(book, plans)
    progress = Progress(traffic.settings, None)
    for warning in (*traffic.warnings, *left_out):
        progress.warn(warning)
    with kept(book, where, [*books.values()]):
        for name, one in parts.items():
            keep_trace(one, books[name].run_dir)
        sweeps = [
            Sweep(kind, parts[name].requests, traffic.settings, books[name], Named(progress, name))
            for name, kind in kinds.items()
        ]
        with progress:
            outcomes = interruption.run(sweep_all(session, sweeps))
        stack.close()
    wall_s = time.monotonic() - began_s
    done = {
        name: done_on(kinds[name], outcome, parts[name], books[name].run_dir, wall_s)
        for name, outcome in outcomes.items()
    }
    return [
        Found(name, str(kind.share), done[name], _per_hour(prices, name, kind), outputs[name])
        for name, kind in kinds.items()
    ], book.run_dir


def done_on(
    kind: "Kind",
    outcome: SweepOutcome | TunerError,
    part: Traffic,
    run_dir: Path,
    wall_s: float,
) -> Done | TunerError:
    """Return what a kind's sweep came to, as far as it came."""
    if isinstance(outcome, TunerError):
        return outcome
    return Done(
        outcome, part.settings, part.warnings, run_dir, part.trace.digest, wall_s,
        ranks_of(kind.starter),
    )  # fmt: skip


def _per_hour(prices: Mapping[str, float], name: str, kind: "Kind") -> float | None:
    """Return what an engine's share of such a node costs; a node without GPUs is paid whole."""
    price = price_of(prices, name)
    return None if price is None else price * max(1.0, kind.share.gpus)


def outputs_of(output: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return where each kind's profile goes: beside ``output``, called after the kind too."""
    suffix = output.suffix or ".yaml"
    return {name: output.with_name(f"{output.stem}-{name}{suffix}") for name in names}


def _check(options: SweepOptions) -> None:
    if len(options.traces) != 1:
        raise UsageError(
            "--ray takes one trace", hint="Give one --trace; sweep the others by themselves."
        )
    if options.metrics_port is not None:
        raise UsageError("--metrics-port is for one engine", hint="Leave it out with --ray.")


def _resolved(
    session: "RaySession", kinds: "Mapping[str, Kind]", ceiling: int
) -> dict[str, Mapping[str, ArgumentValue]]:
    """Return each kind's engine arguments, as a node of it resolves them."""
    from tuner.runs.cluster.sweep_worker import resolved  # noqa: PLC0415 - imports ray

    nodes = {node.id: node for node in session.nodes()}
    found: dict[str, Mapping[str, ArgumentValue]] = {}
    for name, kind in kinds.items():
        first = next(iter(kind.nodes))
        answer = session.ask(resolved, [nodes[first]], kind.starter, ceiling)[first]
        if isinstance(answer, Exception):
            answer = (str(answer), "Look into Ray's logs of that node.")
        if isinstance(answer, tuple):
            raise EngineError(f"{name}: {answer[0]}", hint=answer[1])
        found[name] = answer
    return found


def plans_of(
    options: SweepOptions,
    trace: Trace,
    kinds: "Mapping[str, Kind]",
    arguments: Mapping[str, Mapping[str, ArgumentValue]],
) -> dict[str, dict[str, Any]]:
    """Return what each kind's measurements rest on."""
    return {
        name: plan_of(options, trace, arguments[name], ranks=ranks_of(kind.starter))
        | {"device": dict(kind.description.device)}
        for name, kind in kinds.items()
    }


def _plan_of_all(
    plans: Mapping[str, Mapping[str, Any]], kinds: "Mapping[str, Kind]"
) -> dict[str, Any]:
    first = next(iter(plans.values()))
    common = {k: v for k, v in first.items() if k not in {"engine_arguments", "device"}}
    return common | {"kinds": {name: dict(one.description.device) for name, one in kinds.items()}}


def _conclude(options: SweepOptions, found: Sequence[Found], run_dir: Path) -> None:
    """Write the profiles and print all. Raises what ended the sweeps where none was ended well."""
    for one in found:
        if isinstance(one.done, Done):
            result = sealed(one.done, warnings_of(one.done))
            profile.save(result, one.done.run_dir / "profile.yaml")
            profile.check_output(one.profile, force=options.force)
            profile.save(result, one.profile)
    failed = [one.done for one in found if isinstance(one.done, TunerError)]
    if len(failed) == len(found):
        raise failed[0]
    if options.json:
        sys.stdout.write(json.dumps(json_of(found, run_dir)) + "\n")
    else:
        render_kinds(found, run_dir)
    done = [one.done.outcome for one in found if isinstance(one.done, Done)]
    if all(outcome.verdict.kind == "inconclusive" for outcome in done):
        raise UndecidedError(
            done[0].verdict.reason, hint="The profiles are safe to serve; give a larger --budget."
        )
