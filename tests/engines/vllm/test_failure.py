"""vLLM's failures, in one line with the cure."""

from pathlib import Path

import pytest

from tuner.engines.vllm.failure import Since, died, failed_to_start, root_cause

OUT_OF_MEMORY = """\
(EngineCore pid=7) INFO 11-21 13:00:00 [core.py:1] Initializing a V1 LLM engine
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9]   File "core.py", line 9, in run
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9] torch.OutOfMemoryError: CUDA out of memory.
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_root_cause_is_the_first_error_logged_and_not_its_consequences() -> None:
    assert root_cause(OUT_OF_MEMORY) == "torch.OutOfMemoryError: CUDA out of memory."
    assert root_cause("all is well\n") is None


def written(folder: Path, text: str) -> Since:
    log = Since(folder / "vllm.log")
    log.path.write_text(text)
    return log


def test_a_failed_start_tells_the_root_cause_and_its_cure(tmp_path: Path) -> None:
    error = failed_to_start(written(tmp_path, OUT_OF_MEMORY), RuntimeError("See root cause above"))
    assert "CUDA out of memory" in str(error)
    assert "gpu_memory_utilization" in error.hint


@pytest.mark.parametrize(
    ("message", "shown", "cure"),
    [
        (
            (
                "Engine core initialization failed. See root cause above. Failed core proc(s): "
                "{'EngineCore': -9}"
            ),
            "vLLM did not start: EngineCore was killed by SIGKILL",
            "Lower gpu_memory_utilization",
        ),
        (
            (
                "Available memory on node 0 (7 GiB) is less than requested (200 GiB). Decrease "
                "--kv-cache-memory-bytes"
            ),
            "less than requested",
            "Lower gpu_memory_utilization",
        ),
        ("could not create a primitive", "primitive", "Lower gpu_memory_utilization"),
    ],
)
def test_the_cure_is_of_what_failed(tmp_path: Path, message: str, shown: str, cure: str) -> None:
    error = failed_to_start(written(tmp_path, ""), RuntimeError(message))
    assert shown in str(error)
    assert cure in error.hint


def test_an_engine_that_died_without_a_word_tells_how(tmp_path: Path) -> None:
    log = written(tmp_path, "")
    assert "killed by SIGKILL" in str(died(-9, log))
    assert "SIGSEGV" in str(died(-11, log))
    assert "vllm.log" in died(0, log).hint
