"""The page of a verification. Pure."""

from tuner.profile.profile import ServingProfile
from tuner.profile.summary import engine_time, is_simulated, percent, with_share
from tuner.runs.verify import Gate, Verified
from tuner.views.page import Cell, Column, Page, Section, Table, text


def verify_page(
    verified: Verified, profile: ServingProfile, *, tolerance: float, run_dir: str, next_: str
) -> Page:
    """Return whether the promise was kept, and by how much."""
    broken, count = sum(not gate.kept for gate in verified.gates), len(verified.gates)
    title = f"max_num_seqs {profile.decision.max_num_seqs}"
    aside = f"{broken} of {count} gates broken" if broken else f"{count} of {count} gates kept"
    if broken and verified.taken is not None:
        title, aside = f"nothing can be concluded about {title}", verified.taken
    else:
        title += f" {'breaks' if broken else 'keeps'} its promise"
        shares = (gate.measured for gate in verified.gates if gate.name == "attainment")
        title = with_share(next(shares, 1.0), title)
    is_sim = is_simulated(profile)
    limits = f"the lowest prediction for these windows; times may be {100 * tolerance:g}% longer"
    numbers = (Column(name, name, "number") for name in ("promised", "measured", "limit"))
    columns = [Column("gate", "gate"), *numbers, Column("result", "result")]
    rows: list[list[Cell]] = [
        [
            _named(gate),
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
        aside="simulated, " * is_sim + aside,
        facts=[("limits", limits), ("took", engine_time(verified.engine_s, simulated=is_sim))],
        sections=[
            Section("Gates", tables=[Table([*columns, Column("limit_is", "limit is")], rows)])
        ],
        run_dir=run_dir,
        next=next_,
    )


def broken_in_words(gate: Gate) -> str:
    """Return a gate that was not kept, in words."""
    words = f"{_named(gate)} was {_shown(gate, gate.measured)}"
    if not gate.is_promise:
        return f"{words}, {gate.limit_is}"
    bound = "at least" if gate.name == "attainment" else "at most"
    limit = f"{bound} {_shown(gate, gate.limit)}"
    return f"{words}, promised {_shown(gate, gate.promised)} ({limit})"


def _named(gate: Gate) -> str:
    is_share = gate.name == "attainment"
    return "share that met the SLO" if is_share else gate.name.removesuffix("_ms")


def _shown(gate: Gate, value: float) -> str:
    if gate.name == "attainment" or gate.name.startswith("kv_cache_usage"):
        return percent(value)
    return text("time", value / 1e3) if gate.name.endswith("_ms") else f"{value:,.1f}"
