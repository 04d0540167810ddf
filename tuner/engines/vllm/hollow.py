"""A worker that computes nothing, for an engine of vLLM's with all but the model. Imports vLLM.

Scheduler, processes and front end are vLLM's own; every iteration takes as long as was said. So it
shows what they do at a rate that the device here does not reach.
"""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import time
from typing import Any

from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    AsyncModelRunnerOutput,
    ModelRunnerOutput,
)

STEP_S = "tuner_step_s"
"""Key of ``additional_config``: how long an iteration takes."""

_TOKEN = 7

_Worker: Any = resolve_obj_by_qualname(
    "vllm.v1.worker.cpu_worker.CPUWorker"
    if current_platform.is_cpu()
    else "vllm.v1.worker.gpu_worker.Worker"
)


class _Later(AsyncModelRunnerOutput):
    """An output that is there at a certain time: until then nobody is kept from scheduling more."""

    def __init__(self, output: ModelRunnerOutput, at_s: float) -> None:
        self._output, self._at_s = output, at_s

    def get_output(self) -> ModelRunnerOutput:
        time.sleep(max(0.0, self._at_s - time.monotonic()))
        return self._output

    def get_kv_connector_output(self) -> None:
        """Return nothing: there is no connector. vLLM asks from 0.33 on, where ``get_output`` has
        failed."""


class HollowWorker(_Worker):
    """Gives every sequence whose tokens are all computed the same token."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._step_s = float(vllm_config.additional_config[STEP_S])
        self._free_s = 0.0
        self._scheduled: Any = None
        self._lengths: dict[str, int] = {}
        """Request → its tokens so far, of prompt and output."""

    def execute_model(self, scheduler_output: Any) -> Any:
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        self._scheduled = scheduler_output
        return None

    def sample_tokens(self, _grammar_output: Any) -> Any:
        """Return what comes when this iteration and those before it have had their time."""
        self._free_s = max(self._free_s, time.monotonic()) + self._step_s
        scheduled = self._scheduled
        names = list(scheduled.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=self._tokens(scheduled),
        )
        return _Later(output, self._free_s)

    def _tokens(self, scheduled: Any) -> list[list[int]]:
        lengths = self._lengths
        for name in scheduled.finished_req_ids:
            lengths.pop(name, None)
        again = scheduled.scheduled_cached_reqs
        computed = dict(zip(again.req_ids, again.num_computed_tokens, strict=True))
        for one in scheduled.scheduled_new_reqs:
            computed[one.req_id] = one.num_computed_tokens
            lengths.setdefault(one.req_id, len(one.prompt_token_ids))
        found = []
        for name, tokens in scheduled.num_scheduled_tokens.items():
            ends = computed[name] + tokens >= lengths[name]
            lengths[name] += ends
            found.append([_TOKEN] if ends else [])
        return found
