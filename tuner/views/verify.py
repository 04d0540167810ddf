"""The page of a verification. Pure."""

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
    broken, count = sum(not gate.kept for gate in verified.gates), len(verified.gates)
    cap = profile.decision.max_num_seqs
    title = f"max_num_seqs {cap} {'breaks' if broken else 'keeps'} its promise"
    aside = f"{broken} of {count} gates broken" if broken else f"{count} of {count} gates kept"
    if broken and verified.taken is not None:
        title, aside = f"nothing can be concluded about max_num_seqs {cap}", verified.taken
    else:
        shares = (gate.measured for gate in verified.gates if gate.name == "attainment")
        title = with_share(next(shares, 1.0), title)
    took = f"{minutes(verified.engine_s)} of server time"
    if not of_server:
        took = engine_time(verified.engine_s, simulated=is_simulated(profile))
    limits = f"the lowest prediction for these windows; times may be {100 * tolerance:g}% longer"
    columns = [
        Column("gate", "gate"),
        *(Column(name, name, "number") for name in ("promised", "measured", "limit")),
        Column("result", "result"),
        Column("limit_is", "limit is"),
    ]
    rows: list[list[Cell]] = [
        [
            gate.name.removesuffix("_ms"),
            _shown(gate, gate.promised) if gate.is_promise else None,
            _shown(gate, gate.measured),
            _shown(gate, gate.limit),
            "kept" if gate.kept else "BROKEN",
            gate.limit_is,
        ]
        for gate in verified.gates
    ]
    return Page(
        subject=f"Verification {run_dir}",
        title=title,
        aside="simulated, " * is_simulated(profile) + aside,
        facts=[("limits", limits), ("took", took)],
        sections=[Section("Gates", tables=[Table(columns, rows)])],
        run_dir=run_dir,
        next=next_,
    )


def broken_in_words(gate: Gate) -> str:
    """Return a gate that was not kept, in words."""
    name = gate.name.removesuffix("_ms")
    measured, promised, limit = (
        _shown(gate, value) for value in (gate.measured, gate.promised, gate.limit)
    )
    if not gate.is_promise:
        return f"{name} was {measured}, {gate.limit_is}"
    if name == "attainment":
        return f"{measured} met the SLO, promised {promised} (at least {limit})"
    return f"{name} was {measured}, promised {promised} (at most {limit})"


def _shown(gate: Gate, value: float) -> str:
    if gate.name in SHARES:
        return percent(value)
    return text("time", value / 1e3) if gate.name.endswith("_ms") else f"{value:,.1f}"
