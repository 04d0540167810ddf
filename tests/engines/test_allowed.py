"""What a stranger's profile may set of an engine: numbers and switches, nothing that acts."""

import pytest

from tuner.engines import arguments as allowed
from tuner.engines.arguments import TAKES
from tuner.engines.seam import ArgumentValue


@pytest.mark.attack
def test_every_name_on_the_list_is_vllms() -> None:
    assert allowed.ALLOWED.keys() - TAKES.keys() == set()


FLAG = "--tool-parser-plugin=./evil.py"


@pytest.mark.attack
@pytest.mark.parametrize("value", [FLAG, "", ["1", FLAG], [FLAG], ["a"], {FLAG: 1}, {"a": [FLAG]}])
def test_no_value_is_or_hides_a_flag(value: ArgumentValue) -> None:
    assert [name for name in allowed.ALLOWED if allowed.is_allowed(name, value)] == []


@pytest.mark.attack
def test_what_is_not_on_it_cannot_be_taken_away_either() -> None:
    gone = {"api_key": None, "host": None, "ssl_certfile": None, "max_model_len": None}
    assert allowed.not_allowed(gone) == ["api_key", "host", "ssl_certfile"]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_local_media_path", "/"),
        ("api_key", ["attacker"]),
        ("compilation_config", {"backend": "evil.Backend"}),
        ("hf_overrides", {"auto_map": {"AutoConfig": "evil.Config"}}),
        ("kv_transfer_config", {"kv_connector_module_path": "evil"}),
        ("load_format", "pt"),
        ("scheduler_cls", "evil.Scheduler"),
        ("speculative_config", {"model": "evil/model"}),
        ("tokenizer_mode", "custom"),
        ("tool_parser_plugin", "/srv/evil.py"),
        ("trust_remote_code", True),
        ("worker_cls", "evil.Worker"),
        ("x_of_tomorrow", 1),
    ],
)
def test_what_loads_code_opens_places_or_sends_data_is_not_on_it(
    name: str, value: ArgumentValue
) -> None:
    assert allowed.not_allowed({"max_num_seqs": 16, name: value}) == [name]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cudagraph_capture_sizes", [1, 2]),
        ("load_format", "dummy"),
        ("tokenizer_mode", "auto"),
        ("trust_remote_code", False),
        ("limit_mm_per_prompt", {"image": 2, "video": {"count": 1}}),
        ("max_model_len", None),
        ("optimization_level", 3),
    ],
)
def test_values_that_are_only_data_are(name: str, value: ArgumentValue) -> None:
    assert allowed.not_allowed({name: value}) == []
