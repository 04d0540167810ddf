"""What a sweep would run, and what could go wrong; nothing is started for it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.commands.shared.run_folder import finish
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.summary import minutes
from tuner.runs.sweep.conclusion import doubling
from tuner.runs.sweep.sweep import STEPS
from tuner.traffic.workload import affordable_step_s
from tuner.views.page import Page

if TYPE_CHECKING:
    from tuner.commands.sweep import Job


def show(job: "Job", command: str) -> None:
    """Print what a sweep would run. Raises UsageError for a budget that is too small for any."""
    ceiling, settings, warnings = job.options.ceiling, job.settings, list(job.warnings)
    starter = job.starter
    if isinstance(starter, VllmStarter):  # which only vLLM resolves
        arguments = {**starter.given, "max_num_seqs": ceiling}
    else:
        arguments = {**starter.resolve(max_num_seqs=ceiling)}
    lengths = np.array([(each.input_length, each.output_length) for each in job.requests])
    prompt, output = lengths.mean(0)
    length_s = job.requests[-1].arrival_s - job.requests[0].arrival_s
    step_s = affordable_step_s(
        settings.step_s, steps=STEPS, budget_s=settings.budget_s, starts_s=0.0
    )
    facts = {
        "trace": f"{len(lengths):,} requests in {minutes(length_s)}, on average {prompt:,.0f} "
        f"tokens in and {output:,.0f} out",
        "steps": f"max_num_seqs {', '.join(map(str, doubling(settings.ceiling)))} for "
        f"{minutes(step_s)} each, then the choice on a fresh engine",
        "time": f"at most {minutes(settings.budget_s)}, with two engine starts",
        "engine": ", ".join(f"{key}={value}" for key, value in arguments.items()),
        "memory": "how many KV blocks there are is known once the engine has started",
    }
    result: dict[str, Any] = {"dry_run": True, "engine_arguments": arguments, "next": command}
    blocks, size = arguments.get("num_gpu_blocks_override"), arguments.get("block_size")
    if isinstance(blocks, int) and isinstance(size, int):
        taken = np.ceil(lengths.sum(1) / size)
        fits, longest_fit = int(blocks / taken.mean()), int(blocks // taken.max())
        result |= {"kv_blocks": blocks, "mean_fit": fits, "longest_fit": longest_fit}
        facts["memory"] = (
            f"{blocks:,} KV blocks of {size} tokens: {fits:,} sequences of this trace's mean "
            f"length, {longest_fit:,} of the longest"
        )
        if fits < ceiling:
            warnings.insert(
                0,
                f"max_num_seqs {ceiling} is more than the {fits:,} sequences that fit into memory: "
                "the largest steps will wait for KV blocks or preempt",
            )
    title = "Dry run: nothing was started"
    page = Page(
        subject=title, title=title, facts=list(facts.items()), warnings=warnings, next=command
    )
    finish(job.options, {**result, "facts": facts, "warnings": warnings}, page)
