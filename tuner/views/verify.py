"""The page and the JSON of a verification. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.profile.schema import ServingProfile
from tuner.profile.summary import (
    engine_time,
    is_simulated,
    milliseconds,
    minutes,
    percent,
    with_share,
)
from tuner.runs.verify import Gate, Verified
from tuner.views.page import Column, Page, Section, Table

TIMES = {"tpot_p95_ms": "p95 TPOT", "ttft_p95_ms": "p95 TTFT", "e2el_p95_ms": "p95 E2EL"}
SHARES = (
    "attainment",
    "kv_cache_usage_mean", "kv_cache_usage_p99", "kv_cache_usage_peak",
)  # fmt: skip


def verify_page(  # noqa: PLR0913 - all that is printed
    verified: Verified,
    profile: ServingProfile,
    *,
    tolerance: float,
    of_server: bool,
    run_dir: str,
    next_: str,
) -> Page:
    """Return whether the promise was kept, and by how much. ``of_server``: nothing was started."""
    gates = {gate.name: gate for gate in verified.gates}
    broken = [gate for gate in verified.gates if not gate.kept]
    times = [
        f"{words} {milliseconds(gates[name].measured)} (limit {milliseconds(gates[name].limit)})"
        if name in gates
        else _seen(verified.p95_ms, name, words)
        for name, words in TIMES.items()
    ]
    is_promise = any(gate.is_promise for gate in verified.gates)
    limits = [gate.limit_is for gate in verified.gates if not gate.is_promise]
    if is_promise:
        limits.append(
            "the lowest prediction of the profile for these windows; times may be "
            f"{100 * tolerance:g}% longer"
        )
    share = gates.get("attainment")
    given = ""
    if share is not None:
        promised = f"; promised {percent(share.promised)}" if share.is_promise else ""
        given = f"{percent(share.measured)} met the SLO{promised}, limit {percent(share.limit)}"
    took = f"{minutes(verified.engine_s)} of server time"
    if not of_server:
        took = engine_time(verified.engine_s, simulated=is_simulated(profile))
    cap = profile.decision.max_num_seqs
    title = verdict_of(cap, kept=not broken, is_promise=is_promise)
    aside = f"{len(broken) or len(verified.gates)} of {len(verified.gates)} gates "
    aside += "broken" if broken else "kept"
    if broken and verified.taken is not None:
        title, aside = f"nothing can be concluded about max_num_seqs {cap}", verified.taken
    elif share is not None:
        title = with_share(share.measured, title)
    facts = {"gives": given, "times": ", ".join(filter(None, times)), "limits": "; ".join(limits)}
    return Page(
        subject=f"Verification {run_dir}".strip(),
        title=title,
        aside="simulated, " * is_simulated(profile) + aside,
        facts=[(name, words) for name, words in (*facts.items(), ("took", took)) if words],
        sections=[Section("Gates", tables=[_table(verified)])],
        run_dir=run_dir,
        next=next_,
    )


def verdict_of(cap: int, *, kept: bool, is_promise: bool) -> str:
    """Return the verdict in words: of a server of which the profile promises nothing, whether it
    does what is required."""
    if is_promise:
        return f"max_num_seqs {cap} {'keeps' if kept else 'breaks'} its promise"
    return f"the server {'keeps' if kept else 'breaks'} what is required"


def broken_in_words(gate: Gate) -> str:
    """Return a gate that was not kept, in words."""
    name, is_share = gate.name.removesuffix("_ms"), gate.name in SHARES
    measured, promised, limit = (
        percent(value) if is_share else _plain(gate.name, value)
        for value in (gate.measured, gate.promised, gate.limit)
    )
    if not gate.is_promise:
        return f"{name} was {measured}, {gate.limit_is}"
    if gate.name == "attainment":
        return f"{measured} met the SLO, promised {promised} (at least {limit})"
    return f"{name} was {measured}, promised {promised} (at most {limit})"


def verify_json(verified: Verified, *, profile: str, trace: str) -> dict[str, Any]:
    """Return the object that ``tuner verify --json`` prints."""
    return {
        "profile": profile,
        "trace": trace,
        "kept": all(gate.kept for gate in verified.gates),
        "gates": [asdict(gate) for gate in verified.gates],
        "p95_ms": dict(verified.p95_ms),
    }


def _table(verified: Verified) -> Table:
    columns = [
        Column("gate", "gate"),
        Column("promised", "promised", "number"),
        Column("measured", "measured", "number"),
        Column("limit", "limit", "number"),
        Column("kept", "kept"),
        Column("because", "because"),
    ]
    return Table(
        columns,
        [
            [
                TIMES.get(gate.name, gate.name),
                _value(gate, gate.promised) if gate.is_promise else None,
                _value(gate, gate.measured),
                _value(gate, gate.limit),
                "kept" if gate.kept else "BROKEN",
                gate.limit_is,
            ]
            for gate in verified.gates
        ],
    )


def _value(gate: Gate, value: float) -> str:
    return percent(value) if gate.name in SHARES else _plain(gate.name, value)


def _plain(name: str, value: float) -> str:
    return milliseconds(value) if name.endswith("_ms") else f"{value:,.1f}"


def _seen(p95_ms: Mapping[str, float], name: str, words: str) -> str:
    """Return a time that nothing promises; empty where no request has one."""
    seen = p95_ms.get(name.removesuffix("_p95_ms"))
    return "" if seen is None else f"{words} {milliseconds(seen)}"
