"""Which engine arguments a run begins with."""

from pathlib import Path

import pytest

from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import ArgumentValue
from tuner.errors import InputError, UsageError


def arguments(
    base: Path | None = None, *overrides: str, model: str | None = "tuner:tiny"
) -> dict[str, ArgumentValue]:
    return engine_arguments(model=model, base=base, header_model=None, overrides=overrides)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "serve.yaml"


@pytest.mark.parametrize(
    ("model", "stated", "header", "chosen"),
    [
        ("option", "file", "header", "option"),
        (None, "file", "header", "file"),
        (None, None, "header", "header"),
    ],
)
def test_the_option_names_the_model_before_the_file_and_the_file_before_the_header(
    base: Path, model: str | None, stated: str | None, header: str, chosen: str
) -> None:
    base.write_text(f"model: {stated}\n" if stated else "")
    result = engine_arguments(model=model, base=base, header_model=header, overrides=())
    assert result == {"model": chosen}


@pytest.mark.attack
def test_a_model_that_would_be_a_flag_is_refused_whoever_names_it(base: Path) -> None:
    evil = "--tool-parser-plugin=evil.py"
    base.write_text(f"model: {evil}\n")
    for model, file, header in ((evil, None, None), (None, base, None), (None, None, evil)):
        with pytest.raises(InputError, match=r"the model .* begins with a hyphen"):
            engine_arguments(model=model, base=file, header_model=header, overrides=())


@pytest.mark.vllm
def test_a_serve_config_is_read_as_vllm_reads_it(base: Path) -> None:
    base.write_text(
        """\
model: acme/one
host: 0.0.0.0                 # the server's: not for the engine
port: 8000
api-server-count: 2           # the server's too, and felt by its users
max-model-len: 2k             # a decimal kilo
max_num_batched_tokens: 1024
gpu-memory-utilization: 0.5
enforce-eager: true
enable-chunked-prefill: false # states nothing, in vLLM
no-enable-prefix-caching: true
compilation-config: {mode: 0}
hf-overrides: {rope: {theta: 5}}
cudagraph-capture-sizes: [1, 2]
"""
    )
    assert arguments(base, model=None) == {
        "model": "acme/one",
        "api_server_count": 2,
        "max_model_len": 2000,
        "max_num_batched_tokens": 1024,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 0},
        "hf_overrides": {"rope": {"theta": 5}},
        "cudagraph_capture_sizes": [1, 2],
    }


@pytest.mark.vllm
def test_set_counts_more_than_the_file(base: Path) -> None:
    base.write_text("block-size: 16\ncompilation-config: {mode: 1}\nseed: 4\n")
    result = arguments(
        base, "block_size=32", 'compilation_config={"mode": 0}', "enable-prefix-caching=false"
    )
    assert result == {
        "model": "tuner:tiny",
        "block_size": 32,
        "compilation_config": {"mode": 0},
        "seed": 4,
        "enable_prefix_caching": False,
    }


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("max_modle_len=5", "unrecognized arguments", "vllm serve"),
        ("max_model_len=x", "max_model_len: vLLM does not take 'x'", ""),
        ("kv_cache_memory_bytes=200Gi", "converted to human_readable_int", ""),
        ("enforce_eager=5", "enforce_eager", ""),
        ("port=8000", "of the server", "Leave it out"),
        ("compilation_config=[", "not JSON", "quotes"),
        ("compilation_config.mode=0", "one key of a mapping", "whole mapping"),
    ],
)
def test_what_vllm_would_not_take_from_set_is_wrong_usage(
    override: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        arguments(None, override)
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.vllm
@pytest.mark.parametrize("line", ["max-modle-len: 5", "max-model-len: wide", "block-size: null"])
def test_what_vllm_would_not_take_from_the_file_is_named_with_its_line(
    base: Path, line: str
) -> None:
    base.write_text(f"seed: 1\n{line}\n")
    with pytest.raises(InputError, match=r"serve\.yaml:2"):
        arguments(base)
