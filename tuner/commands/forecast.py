"""What a sweep would run, and what could go wrong; nothing is started for it."""

from typing import TYPE_CHECKING

import numpy as np

from tuner.engines.vllm.start import VllmStarter
from tuner.profile.summary import minutes
from tuner.runs.ladder import STEPS, doubling
from tuner.traffic.constants import MIN_STEP_S
from tuner.traffic.workload import affordable_step_s
from tuner.views.page import Page
from tuner.views.text import print_json, print_page

if TYPE_CHECKING:
    from tuner.commands.sweep import Job

STARTS = 2
"""Of engines: the ladder's, and the one that confirms."""


def show(job: "Job", command: str) -> None:
    """Print what a sweep would run. Raises UsageError for a budget that is too small for any."""
    requests, ceiling, warnings = job.requests, job.options.ceiling, [*job.warnings]
    if isinstance(job.starter, VllmStarter):  # without vLLM
        arguments = {**job.starter.given, "max_num_seqs": ceiling}
    else:
        arguments = dict(job.starter.resolve(max_num_seqs=ceiling))
    blocks, block_size = (
        int(str(arguments.get(name) or 0)) for name in ("num_gpu_blocks_override", "block_size")
    )
    prompts, outputs = np.array([(each.input_length, each.output_length) for each in requests]).T
    length_s = requests[-1].arrival_s - requests[0].arrival_s
    facts = {
        "trace": f"{len(requests):,} requests in {minutes(length_s)}, on average "
        f"{prompts.mean():,.0f} tokens in and {outputs.mean():,.0f} out",
        **_steps(job),
        "engine": ", ".join(f"{key}={value}" for key, value in arguments.items()),
    }
    document = {"dry_run": True, "facts": facts, "engine_arguments": arguments, "next": command}
    facts["memory"] = "how many KV blocks there are is known once the engine has started"
    if blocks and block_size:
        facts["memory"] = f"{blocks:,} KV blocks of {block_size} tokens"
        taken = np.ceil((prompts + outputs) / block_size)
        fit, longest_fit = int(blocks / taken.mean()), int(blocks // taken.max())
        document |= {"kv_blocks": blocks, "mean_fit": fit, "longest_fit": longest_fit}
        facts["fits"] = (
            f"{fit:,} sequences of this trace's mean length, {longest_fit:,} of the longest"
        )
        if fit < ceiling:
            warnings.insert(
                0,
                f"max_num_seqs {ceiling} is more than the {fit:,} sequences that fit into memory: "
                "the largest steps will wait for KV blocks or preempt",
            )
    longest = arguments.get("max_model_len")
    if longest is not None:
        dropped = int((prompts + np.maximum(1, outputs) > int(str(longest))).sum())
        if dropped:
            warnings.insert(
                0, f"{dropped:,} requests are longer than max_model_len {longest}: left out"
            )
    if job.options.json:
        print_json({**document, "warnings": warnings})
        return
    title = "Dry run: nothing was started"
    rows = list(facts.items())
    page = Page(subject=title, title=title, facts=rows, warnings=warnings, next=command)
    print_page(page, details=True)


def _steps(job: "Job") -> dict[str, str]:
    """Return caps and time of a sweep, as far as they are known before an engine is timed."""
    settings, start_s = job.settings, None
    if job.options.world is not None:
        from tuner.engines.sim.world import read_world  # noqa: PLC0415 - numba

        start_s = read_world(job.options.world).engine_start
    budget_s, starts_s = settings.budget_s, STARTS * (start_s or 0.0)
    step_s = affordable_step_s(settings.step_s, steps=STEPS, budget_s=budget_s, starts_s=starts_s)
    longest = f"at most {minutes((budget_s - MIN_STEP_S * STEPS) / STARTS)}"
    start = longest if start_s is None else minutes(start_s)
    caps = ", ".join(map(str, doubling(settings.ceiling)))
    fresh = "on a fresh one" if settings.confirm == "inproc" else "behind a fresh server"
    return {
        "steps": f"max_num_seqs {caps}, live on one engine, then the choice {fresh}",
        "time": f"at most {minutes(budget_s)} of engine: {STARTS} starts of {start} each, and "
        f"replays of {STEPS:.2g} times {minutes(step_s)} at most",
    }
