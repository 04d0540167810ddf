"""What the options of ``tuner compare`` mean: settings, and the plan of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.engines.workers.seam import Batching
from tuner.errors import UsageError
from tuner.profile.profile import load as load_profile
from tuner.runs import journal
from tuner.runs.compare.approaches.registry import chosen
from tuner.runs.compare.load_levels import parse_levels
from tuner.runs.compare.settings import CompareSettings
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import Trace
from tuner.traffic.slo import parse_slo
from tuner.traffic.window import parse_duration_s, parse_window


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The command line, as given."""

    trace: Path
    profile: Path | None
    max_num_seqs: int | None
    sweep: bool
    approaches: str | None
    loads: str
    engine: str
    world: Path | None
    model: str | None
    base: Path | None
    overrides: tuple[str, ...]
    untuned: int
    batch_size: int
    batch_wait: str
    queue_size: int
    slo: str | None
    window: str
    step: str
    repeats: int
    budget: str
    resume: bool
    run_dir: Path | None
    output: Path | None
    force: bool
    seed: int
    json: bool

    @property
    def static(self) -> Batching:
        return Batching(self.batch_size, parse_duration_s(self.batch_wait, option="--batch-wait"))

    @property
    def is_tuned(self) -> bool:
        """Whether the tuned value is given."""
        return self.max_num_seqs is not None or (self.profile is not None and not self.sweep)


SWEEP_SHARE = 0.2
"""Of the budget, for the sweep that finds the tuned value."""

SWEEP_STEP_S = 60.0


def settings_of(options: CompareOptions, trace: Trace) -> CompareSettings:
    """Raises UsageError for what cannot be asked."""
    parse_window(options.window)
    if options.sweep and options.max_num_seqs is not None:
        raise UsageError(
            "--sweep finds max_num_seqs, --max-num-seqs gives it", hint="Leave one of them out."
        )
    approaches = chosen(options.approaches, has_profile=options.profile is not None)
    needs_sweep = not options.is_tuned and "tuned" in {one.name for one in approaches}
    if options.slo is not None:
        parse_slo(options.slo)
        if not needs_sweep:
            raise UsageError(
                "--slo is for the sweep that finds max_num_seqs, and there is none",
                hint="Leave out --slo, or give --sweep instead of --max-num-seqs.",
            )
    return CompareSettings(
        approaches=approaches,
        levels=parse_levels(options.loads),
        untuned=options.untuned,
        window=options.window,
        step_s=parse_duration_s(options.step, option="--step"),
        repeats=options.repeats,
        budget_s=parse_duration_s(options.budget, option="--budget"),
        sweep_share=SWEEP_SHARE if needs_sweep else 0.0,
        seed=options.seed,
        trace_block_size=trace.header.block_size,
    )


def sweep_settings_of(options: CompareOptions, settings: CompareSettings) -> SweepSettings:
    """Return the settings of that sweep."""
    return SweepSettings(
        ceiling=options.untuned,
        slo=parse_slo(options.slo) if options.slo is not None else None,
        window="all",
        step_s=SWEEP_STEP_S,
        budget_s=settings.sweep_share * settings.budget_s,
        headroom=1.0,
        fast=True,
        fresh=False,
        closed_sessions=False,
        seed=settings.seed,
        trace_block_size=settings.trace_block_size,
    )


def warnings_about(options: CompareOptions) -> list[str]:
    """Say what to beware of in what was asked."""
    if options.profile is None:
        return []
    profile, found = load_profile(options.profile), []
    if options.force:
        found.append(
            f"--force: {options.profile} may be of another machine; only its settings count here"
        )
    if options.engine == "sim" and profile.provenance.engine != "sim":
        found.append(
            "a simulated engine takes of a profile's arguments only max_num_seqs, "
            "max_num_batched_tokens, num_gpu_blocks_override and block_size"
        )
    return found


def plan_of(options: CompareOptions, trace: Trace, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    names = (
        *(
            "engine",
            "approaches",
            "loads",
            "max_num_seqs",
            "sweep",
            "untuned",
            "batch_size",
            "batch_wait",
        ),
        *("queue_size", "slo", "window", "step", "repeats", "budget", "seed"),
    )
    profile = load_profile(options.profile).digest if options.profile is not None else None
    return {
        "compare": True,
        "trace_digest": trace.digest,
        "profile_digest": profile,
        **machine,
        **{name: getattr(options, name) for name in names},
    }


def open_sweep(run_dir: Path, plan: dict[str, Any]) -> journal.Journal:
    """Open the journal of the sweep within a run, one that was begun or a new one."""
    folder = run_dir / "sweep"
    begun = (folder / "journal.jsonl").exists()
    return journal.resume(folder, plan) if begun else journal.create(folder, plan)
