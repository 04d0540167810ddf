"""What vLLM says, found again in its log."""

import logging
from pathlib import Path

import pytest

from tuner.engines.vllm.log import Since, silent

pytestmark = pytest.mark.vllm


def test_a_kernel_that_vllm_compiles_while_it_serves_is_found_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with silent(log):
        from vllm.utils import jit_monitor  # noqa: PLC0415 - imports vLLM

    logger = logging.getLogger(jit_monitor.logger.name)
    handler = logging.FileHandler(log)
    line = "(EngineCore pid=7) %(levelname)s 11-24 02:00:00 [%(filename)s:%(lineno)d] %(message)s"
    handler.setFormatter(logging.Formatter(line))
    logger.addHandler(handler)
    result = Since(log)
    try:
        jit_monitor._handle_jit_event(backend="Triton", event="JIT compilation", fn_name="a_kernel")
    finally:
        logger.removeHandler(handler)
        handler.close()
    (words, *_) = result.compiled()
    assert words == "Triton JIT compilation during inference: a_kernel"
    assert result.compiled() == []


def test_a_line_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("Compiling a graph for compile range (1, 2048) takes 9 s\n")
    result = Since(log)
    with log.open("a") as file:
        file.write("INFO [backends.py:399] Compiling a graph for compile range (1, 16)")
        file.flush()
        assert result.compiled() == []
        file.write(" takes 3.10 s\nINFO all is well\n")
    assert result.compiled() == ["Compiling a graph for compile range (1, 16) takes 3.10 s"]
