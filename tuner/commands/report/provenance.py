"""The section of a report on where its numbers are from, and for what they hold. Pure."""

import json
from collections.abc import Mapping

from tuner.commands.report.drawing.page import Cell, PageSection, Table
from tuner.engines.sampling import in_words
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import minutes

ENGINES = {
    "vllm": "vLLM in tuner's process",
    "serve": "vllm serve",
    "sim": "a simulated engine",
}

CONFIRMED = {
    "server": "behind vllm serve, as users ask",
    "inproc": "on a fresh engine of the same kind",
    None: "-",
}

SENT = {"ids": ", sent token ids", "text": ", sent text", None: ""}


def provenance_section(profile: ServingProfile) -> PageSection:
    """Return what was measured, on what, and for what it holds."""
    origin, validity = profile.provenance, profile.validity
    device = ", ".join(f"{key} {_shown(value)}" for key, value in origin.device.items())
    parts = "".join(f", {name} {minutes(took_s)}" for name, took_s in origin.start_parts_s.items())
    took = (
        f"{origin.engine_starts} starts, {minutes(origin.engine_seconds.starts)}{parts}; "
        f"{minutes(origin.engine_seconds.replay)} of replay; {minutes(origin.wall_s)} in all"
    )
    traffic = f"{validity.window} of the trace, {validity.arrival_rate_rps:.2f} requests a second"
    facts: list[list[Cell]] = [
        ["model", profile.model],
        ["engine", ENGINES[origin.engine]],
        ["confirmed", CONFIRMED[origin.confirm] + SENT[origin.send]],
        ["device", device],
        ["KV cache", ", ".join(f"{of} {n:,} blocks" for of, n in origin.kv_blocks.items()) or "-"],
        ["sampling", in_words(profile.sampling)],
        ["versions", ", ".join(f"{key} {value}" for key, value in origin.versions.items())],
        ["environment", _variables(origin.environment)],
        ["SLO", str(profile.decision.slo.slo)],
        ["objective", profile.decision.objective],
        ["traffic", traffic],
        ["replayed of it", ", ".join(validity.windows)],
        ["validated to", f"{validity.validated_load:g} times the load"],
        ["trace", validity.trace_digest],
        ["profile", profile.digest],
        ["made", f"{origin.created} by tuner {origin.tuner}, seed {origin.seed}"],
        ["engine time", took],
        ["tune again when", "; ".join(validity.retune_when)],
    ]
    engine: list[list[Cell]] = [[key, _shown(value)] for key, value in profile.engine.items()]
    measured = Table("What was measured, on what, for what it holds", (), facts, is_facts=True)
    arguments = Table("The engine's arguments, all of them pinned", (), engine, is_facts=True)
    return PageSection("Provenance", "", [measured, arguments])


def _variables(found: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (found or {}).items()) or "-"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
