"""vLLM's flags in every spelling, and what of them is refused."""

import re
import subprocess

import pytest
import yaml

from tests.support.targets import read, write
from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError
from tuner.rollout.targets.kinds import kubernetes

POD = "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: [%s]\n"


def edited(args: str, **arguments: ArgumentValue) -> str:
    """Return the arguments of a container after an edit."""
    text = write(kubernetes, POD % args, arguments, source="pod.yaml")
    assert write(kubernetes, text, arguments, source="pod.yaml") == text
    return text.partition("[")[2].partition("]\n")[0]


def refused(args: str, **arguments: ArgumentValue) -> str:
    with pytest.raises(TargetError) as problem:
        write(kubernetes, POD % args, arguments, source="pod.yaml")
    assert "\n" not in str(problem.value) + problem.value.hint
    return str(problem.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--max-num-seqs=64", "--max-num-seqs=16"),
        ("--max_num_seqs=64", "--max_num_seqs=16"),
        ("--max-num_seqs, '64'", "--max-num_seqs, '16'"),
        ('--max-num-seqs, "64", --port, "1"', '--max-num-seqs, "16", --port, "1"'),
        ("--max-num-seqs, 64", "--max-num-seqs, '16'"),
        ("--max-num-seqs, 16", "--max-num-seqs, 16"),
        ("--max-num-seqs=016", "--max-num-seqs=16"),
        ("m, --port=1", "m, --port=1, --max-num-seqs=16"),
        ("m, --port, '1'", "m, --port, '1', --max-num-seqs, '16'"),
        ("", "--max-num-seqs=16"),
    ],
)
def test_a_number_is_set_where_it_stands(before: str, after: str) -> None:
    assert edited(before, max_num_seqs=16) == after


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("--enforce-eager", False, "--no-enforce-eager"),
        ("--enforce_eager", False, "--no_enforce_eager"),
        ("--no-enforce-eager", True, "--enforce-eager"),
        ("--no-enforce-eager", False, "--no-enforce-eager"),
        ("--enforce-eager=false", False, "--no-enforce-eager"),
        ("--enforce-eager=true", True, "--enforce-eager"),
        ("--enforce-eager, m2", True, "--enforce-eager, m2"),
        ("--port=1, --enforce-eager", None, "--port=1"),
        ("--port=1", False, "--port=1, --no-enforce-eager"),
    ],
)
def test_a_switch_is_spelt_as_vllm_takes_it(before: str, value: ArgumentValue, after: str) -> None:
    assert edited(before, enforce_eager=value) == after


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("--disable-prefix-caching", False, "--disable-prefix-caching"),
        ("--disable-prefix-caching", True, "--enable-prefix-caching"),
        ("--enable-prefix-caching", False, "--no-enable-prefix-caching"),
        ("--disable_prefix_caching, --port=1", None, "--port=1"),
    ],
)
def test_the_opposite_of_a_switch_is_that_switch(
    before: str, value: ArgumentValue, after: str
) -> None:
    assert edited(before, enable_prefix_caching=value) == after


@pytest.mark.parametrize(
    "words",
    [
        "m, --port=1",
        "--port, '1', m",
        "--monokernel, m",
        "--disable-prefix-caching, m",
        "-O3, m",
        "-O, '3', m",
    ],
)
def test_a_model_is_the_first_word_that_is_of_no_flag(words: str) -> None:
    found = read(kubernetes, POD % words, source="pod.yaml")
    assert found["model"].value == "m"
    assert edited(words, model="other") == words


def test_a_switch_without_a_negative_is_turned_off_by_leaving_it_out() -> None:
    assert edited("--disable-log-stats, --port=1", disable_log_stats=False) == "--port=1"


def test_short_names_are_known() -> None:
    assert edited("-tp, '2', -pp=2", tensor_parallel_size=1, pipeline_parallel_size=1) == (
        "-tp, '1', -pp=1"
    )


def test_what_vllm_shall_decide_is_taken_out_with_its_value() -> None:
    assert edited("--max-model-len, '8', --port=1, --seed=3", max_model_len=None, seed=None) == (
        "--port=1"
    )


def test_a_list_is_all_the_words_up_to_the_next_flag() -> None:
    before = "--cudagraph-capture-sizes, '1', '2', --port, '1'"
    assert edited(before, cudagraph_capture_sizes=[1, 2]) == before
    assert edited(before, cudagraph_capture_sizes=[4, 8]) == (
        "--port, '1', --cudagraph-capture-sizes, '4', '8'"
    )


def test_a_mapping_is_one_json_value_compared_as_one() -> None:
    before = "'--compilation-config={\"mode\": 3}'"
    assert edited(before, compilation_config={"mode": 3}) == before
    assert edited(before, compilation_config={"mode": 0}) == ("'--compilation-config={\"mode\":0}'")


def test_a_value_that_looks_like_a_flag_is_one_behind_an_equals_sign() -> None:
    assert edited("--tokenizer, a", tokenizer="--b") == "--tokenizer=--b"
    assert edited("--port, '1'", tokenizer="--b") == "--port, '1', --tokenizer=--b"


def test_a_negative_number_is_a_value() -> None:
    assert edited("--seed, '-1', --port=1", seed=-2) == "--seed=-2, --port=1"


@pytest.mark.attack
@pytest.mark.parametrize("data", ["$(HF_TOKEN)", "$$(HF_TOKEN)", "$$$(HF_TOKEN)", "a$$", "$a"])
def test_what_kubernetes_puts_in_is_not_made_of_data(data: str) -> None:
    """Its rule: $$ is one $, and $(NAME) is the variable."""
    written = edited("--tokenizer=a", tokenizer=data).removeprefix("--tokenizer=")
    put_in = re.sub(r"\$\$|\$\(\w+\)", lambda one: "$" if one[0] == "$$" else "SECRET", written)
    assert put_in == data


@pytest.mark.attack
@pytest.mark.parametrize("data", ["a$$b", "$(HF_TOKEN)", "$$(HF_TOKEN)", "'$(HOME)' $HOME"])
def test_a_script_gets_data_as_kubernetes_and_a_shell_leave_it(data: str) -> None:
    """Kubernetes makes $$ one $ and puts in $(NAME) first; then the shell reads quotes."""
    text = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: v\n"
        "    command: [sh, -c]\n    args:\n    - vllm serve m --tokenizer=a\n"
    )
    written = write("kubernetes", text, {"tokenizer": data})
    script = yaml.safe_load(written)["spec"]["containers"][0]["args"][0]
    put_in = re.sub(r"\$\$|\$\(\w+\)", lambda one: "$" if one[0] == "$$" else "SECRET", script)
    code = f'vllm() {{ printf "%s|" "$@"; }}\n{put_in}'
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"serve|m|--tokenizer={data}|"


@pytest.mark.attack
def test_references_are_not_made_of_data() -> None:
    assert edited("--tokenizer=a", tokenizer="$(HOME) $HOME") == "--tokenizer=$$(HOME) $HOME"


@pytest.mark.parametrize(
    ("args", "arguments", "message"),
    [
        ("--max-num-seqs=1, --max_num_seqs=2", {"max_num_seqs": 16},
         "pod.yaml:5: --max_num_seqs states max_num_seqs a second time, after line 5"),
        ("--compilation-config.mode=3", {"compilation_config": {}},
         "pod.yaml:5: --compilation-config.mode states a part of compilation_config"),
        ("--max-num-b=1", {"max_num_batched_tokens": 16},
         "pod.yaml:5: --max-num-b may be short for max_num_batched_tokens"),
        ("--max-num-seqs=$(SEQS)", {"max_num_seqs": 16},
         "pod.yaml:5: max_num_seqs is decided elsewhere: --max-num-seqs=$(SEQS)"),
        ("'--max-num-seqs={{ .Values.n }}'", {"max_num_seqs": 16},
         "pod.yaml:5: max_num_seqs is decided elsewhere: --max-num-seqs={{ .Values.n }}"),
        ("--max-num-seqs", {"max_num_seqs": 16}, "pod.yaml:5: --max-num-seqs has no value"),
        ("--max-num-seqs 64", {"max_num_seqs": 16},
         "pod.yaml:5: '--max-num-seqs 64' is one argument with a blank in it"),
        ("--config=a.yaml", {"max_num_seqs": 16},
         "pod.yaml:5: vLLM gets its arguments from a --config file"),
        ("m, --, x", {"max_num_seqs": 16}, "pod.yaml:5: a -- ends vLLM's flags"),
        ("vllm serve m", {"max_num_seqs": 16},
         "pod.yaml:5: 'vllm serve m' is one word, and no model"),
        ("[m]", {"max_num_seqs": 16}, "pod.yaml:5: is no word"),
        ("m", {"cudagraph_capture_sizes": [True]},
         "pod.yaml: cudagraph_capture_sizes: a command line cannot carry [True]"),
        ("m", {"cudagraph_capture_sizes": []},
         "pod.yaml: cudagraph_capture_sizes: a command line cannot carry []"),
        ("m", {"tokenizer": "a\0b"}, "pod.yaml: tokenizer: has a NUL in it"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_named(
    args: str, arguments: dict[str, ArgumentValue], message: str
) -> None:
    assert refused(args, **arguments) == message


def test_a_whole_name_is_not_short_for_a_longer_one() -> None:
    assert edited("--model=m", model_impl="auto") == "--model=m, --model-impl=auto"


def test_reading_gives_vllms_names_and_the_last_of_two() -> None:
    text = POD % (
        "--max-num-seqs=8, --no_enforce_eager, -tp, '2', --max-num-seqs=9, --x=$(Y), "
        "--enable-prefix-caching, --disable-prefix-caching"
    )
    found = read(kubernetes, text, source="pod.yaml")
    assert {name: one.value for name, one in found.items()} == {
        "enable_prefix_caching": False,
        "max_num_seqs": 9,
        "x": "$(Y)",
        "enforce_eager": False,
        "tensor_parallel_size": 2,
    }
