"""Prints a verification: a row for each gate, then the verdict."""

from collections.abc import Mapping

from rich.table import Table

from tuner.commands.shared.console import console_for, plain_table, print_block, shown
from tuner.commands.shared.next_step import after, asked_for, command
from tuner.commands.sweep.options import SweepOptions
from tuner.commands.verify.options import VerifyOptions
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import (
    engine_time,
    first_said,
    is_simulated,
    milliseconds,
    minutes,
    percent,
)
from tuner.profile.verdict_block import VerdictBlock
from tuner.runs.verify.gates import Gate
from tuner.runs.verify.verify import Verified

TIMES = {"tpot_p95_ms": "p95 TPOT", "ttft_p95_ms": "p95 TTFT", "e2el_p95_ms": "p95 E2EL"}
SHARES = (
    "attainment",
    "kv_cache_usage_mean", "kv_cache_usage_p99", "kv_cache_usage_peak",
)  # fmt: skip


def render(found: Verified, profile: ServingProfile, options: VerifyOptions) -> None:
    """Print every gate, then the verdict."""
    console = console_for(at_least=80)
    console.print(_table(found))
    console.print()
    print_block(console, block_of(found, profile, options))


def said(gate: Gate) -> str:
    """Return a gate that was not kept in words."""
    if not gate.is_promise:
        unit = " ms" if gate.name.endswith("_ms") else ""
        told = f"{gate.measured:.1%}" if gate.name in SHARES else f"{gate.measured:,.1f}{unit}"
        return f"{gate.name.removesuffix('_ms')} was {told}, {gate.limit_is}"
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


def _table(found: Verified) -> Table:
    table = plain_table("gate", "promised", "measured", "  held to", "", "")
    for column in (table.columns[0], *table.columns[-2:]):
        column.justify = "left"
    for gate in found.gates:
        told = "{:.1%}" if gate.name in SHARES else "{:,.1f}"
        table.add_row(
            gate.name,
            told.format(gate.promised) if gate.is_promise else "-",
            told.format(gate.measured),
            told.format(gate.limit),
            f"  {shown(gate.limit_is)} ",
            "kept" if gate.kept else "[bold red]broken[/]",
        )
    return table


def block_of(found: Verified, profile: ServingProfile, options: VerifyOptions) -> VerdictBlock:
    """Return whether the promise was kept, and by how much."""
    gates = {one.name: one for one in found.gates}
    broken = [one for one in found.gates if not one.kept]
    share = gates.get("attainment")
    times = [
        _held(gates[name], words) if name in gates else _seen(found.p95_ms, name, words)
        for name, words in TIMES.items()
    ]
    of_promise = any(one.is_promise for one in found.gates)
    held_to = [one.limit_is for one in found.gates if not one.is_promise]
    if of_promise:
        source = "the profile's worst forecast for these windows"
        held_to.append(f"{source}; times may be {100 * options.tolerance:g} % above it")
    given = ""
    if share is not None:
        promised = f"; promised {percent(share.promised)}" if share.is_promise else ""
        given = f"{percent(share.measured)} in SLO{promised}, held to {percent(share.limit)}"
    rows = [
        ("gives", given),
        ("times", ", ".join(filter(None, times))),
        ("held to", "; ".join(held_to)),
        ("took", _took(found, options)),
    ]
    cap = profile.decision.max_num_seqs
    title = title_of(cap, kept=not broken, of_promise=of_promise)
    simulated = ""
    if is_simulated(profile):
        simulated = "simulated profile, " if options.url else "simulated, "
    if broken and found.taken is not None:
        again = after(profile, options.profile)
        if options.engine != "sim":
            again = asked_for("verify", options, json=False, run_dir=None)
        told = [(name, text) for name, text in rows if text]
        return VerdictBlock(f"nothing can be said of max_num_seqs {cap}", found.taken, told, again)
    return VerdictBlock(
        title if share is None else first_said(share.measured, title),
        simulated + _gates(found),
        [(name, text) for name, text in rows if text],
        _next(profile, options, broken=bool(broken), of_promise=of_promise),
    )


def title_of(cap: int, *, kept: bool, of_promise: bool) -> str:
    """Return what a verification found, in words: of a server of which the profile promises
    nothing, whether it does what is asked for."""
    if of_promise:
        return f"max_num_seqs {cap} {'keeps' if kept else 'breaks'} its promise"
    return f"what is asked for was {'' if kept else 'not '}kept"


def _next(
    profile: ServingProfile, options: VerifyOptions, *, broken: bool, of_promise: bool
) -> str:
    """Return what to run next. What a server does, of which nothing was promised, is no reason to
    roll the profile out, and none to tune anew."""
    if options.url is not None and not of_promise:
        return command("show", options.profile)
    if broken and options.engine != "sim":
        return _again(profile, options)
    return after(profile, options.profile)


def _gates(found: Verified) -> str:
    broken, count = sum(not one.kept for one in found.gates), len(found.gates)
    return f"{broken} of {count} gates broken" if broken else f"{count} of {count} gates kept"


def _took(found: Verified, options: VerifyOptions) -> str:
    if options.url:
        return f"{minutes(found.engine_s)} of server"
    return engine_time(found.engine_s, simulated=options.engine == "sim")


def _held(gate: Gate, words: str) -> str:
    return f"{words} {milliseconds(gate.measured)} (held to {milliseconds(gate.limit)})"


def _seen(p95_ms: Mapping[str, float], name: str, words: str) -> str:
    """Return a time that nothing promises; empty where no request has one."""
    seen = p95_ms.get(name.removesuffix("_p95_ms"))
    return "" if seen is None else f"{words} {milliseconds(seen)}"


def _again(profile: ServingProfile, options: VerifyOptions) -> str:
    """Return the command that tunes anew on this machine with this trace, for the SLO that the user
    gave; one that was derived is derived anew."""
    slo = profile.decision.slo.slo
    as_here = SweepOptions(
        trace=options.trace,
        model=profile.model,
        slo=None if slo.derived else slo.typed(),
        output=options.profile,
        base=options.base,
        overrides=options.overrides,
        engine="sim" if options.engine == "sim" else "vllm",
        replicas=options.replicas,
        router=options.router,
    )
    return asked_for("sweep", as_here)
