"""The table of vLLM's flags: what it says, and that the vLLM installed here says the same."""

import pytest

from tuner.engines import arguments as flags
from tuner.engines.arguments import FLAGS, canonical


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("enable-prefix-caching", ("enable_prefix_caching", False)),
        ("no-enable-prefix-caching", ("enable_prefix_caching", True)),
        ("disable-prefix-caching", ("enable_prefix_caching", True)),
        ("enable-cascade-attn", ("disable_cascade_attn", True)),
        ("device-memory-utilization", ("gpu_memory_utilization", False)),
        ("no-such-flag", ("such_flag", True)),
        ("disable-what-nobody-knows", ("disable_what_nobody_knows", False)),
    ],
)
def test_every_spelling_of_a_flag_has_its_meaning(name: str, meaning: tuple[str, bool]) -> None:
    assert canonical(name) == meaning


@pytest.mark.vllm
def test_the_parser_that_is_installed_says_nothing_else() -> None:
    """When this fails on a new vLLM: python scripts/vllm_flags.py --update."""
    from tuner.engines.vllm import config  # noqa: PLC0415 - imports vLLM

    here = config.flags()
    assert {flag: FLAGS.get(flag) for flag in here} == here


@pytest.mark.attack
def test_no_value_is_told_as_a_flag_of_its_own() -> None:
    evil = "--tool-parser-plugin=./evil.py"
    assert flags.command_line("dtype", evil) == [f"--dtype={evil}"]
    with pytest.raises(ValueError, match="a value of api_server_count begins with a hyphen"):
        flags.command_line("api_server_count", ["1", evil])
    with pytest.raises(ValueError, match="a value of model"):
        flags.command_line("model", evil)
