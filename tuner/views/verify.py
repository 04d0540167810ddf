"""The page and the JSON of a verification. Pure."""

from dataclasses import asdict
from typing import Any

from tuner.profile.profile import ServingProfile
from tuner.profile.summary import engine_time, is_simulated, minutes, percent, with_share
from tuner.runs.verify import Gate, Verified
from tuner.views.page import Cell, Column, Page, Section, Table, text

SHARES = ("attainment", "kv_cache_usage_mean", "kv_cache_usage_p99", "kv_cache_usage_peak")


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
    count, cap = len(gates), profile.decision.max_num_seqs
    verb = "breaks" if broken else "keeps"
    facts = []
    if is_promise := any(gate.is_promise for gate in verified.gates):
        title = f"max_num_seqs {cap} {verb} its promise"
        words = f"the lowest prediction for these windows; times may be {100 * tolerance:g}% longer"
        facts.append(("limits", words))
    else:
        title = f"the server {verb} what is required"
    aside = f"{len(broken)} of {count} gates broken" if broken else f"{count} of {count} gates kept"
    if broken and verified.taken is not None:
        title, aside = f"nothing can be concluded about max_num_seqs {cap}", verified.taken
    elif "attainment" in gates:
        title = with_share(gates["attainment"].measured, title)
    took = f"{minutes(verified.engine_s)} of server time"
    if not of_server:
        took = engine_time(verified.engine_s, simulated=is_simulated(profile))
    names = ["gate", *["promised"] * is_promise, "measured", "limit", "result", "limit is"]
    rows: list[list[Cell]] = [
        [
            gate.name.removesuffix("_ms"),
            *[_value(gate, gate.promised) if gate.is_promise else None] * is_promise,
            *(_value(gate, each) for each in (gate.measured, gate.limit)),
            "kept" if gate.kept else "BROKEN",
            gate.limit_is,
        ]
        for gate in verified.gates
    ]
    columns = [
        Column(name, name, "number" if name in {"promised", "measured", "limit"} else "text")
        for name in names
    ]
    return Page(
        subject=f"Verification {run_dir}".strip(),
        title=title,
        aside="simulated, " * is_simulated(profile) + aside,
        facts=[*facts, ("took", took)],
        sections=[Section("Gates", tables=[Table(columns, rows)])],
        run_dir=run_dir,
        next=next_,
    )


def broken_in_words(gate: Gate) -> str:
    """Return a gate that was not kept, in words."""
    name = gate.name.removesuffix("_ms")
    measured, promised, limit = (
        _value(gate, value) for value in (gate.measured, gate.promised, gate.limit)
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


def _value(gate: Gate, value: float) -> str:
    if gate.name in SHARES:
        return percent(value)
    return text("time", value / 1e3) if gate.name.endswith("_ms") else f"{value:,.1f}"
