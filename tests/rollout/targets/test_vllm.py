"""What is written, as vLLM's own parser reads it; and what we know of that parser, still true."""

import dataclasses
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import in_process
from tests.support.deployments import ENGINE as ENGINE_OF_EXAMPLES
from tests.support.deployments import EXAMPLES, MODEL, WORDS, Example, applied
from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile
from tests.support.scraped import unserved
from tests.support.targets import read, write
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue
from tuner.live import prometheus
from tuner.profile.profile import load
from tuner.rollout import rollout
from tuner.rollout.targets.kinds import vllm_config

pytestmark = pytest.mark.vllm
MEASURED = ROOT / "profiles" / "translation-tiny-cpu.yaml"
BY_FILE = {example.file: example for example in EXAMPLES}
STARTED = ("vllm.env", "vllm.service")
"""What a server is really started from: a variable in a shell, and a unit; every kind's words are
held against vLLM's parser."""


class Serve:
    """``vllm serve`` up to the parsed arguments: its parser inside the outer one."""

    def __init__(self) -> None:
        from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: PLC0415
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

        self.outer = FlexibleArgumentParser(prog="vllm")
        ServeSubcommand().subparser_init(self.outer.add_subparsers(dest="subparser"))

    def parse_words(self, words: list[str]) -> Namespace:
        arguments: Namespace = self.outer.parse_args(["serve", *words])
        return arguments

    def parse(self, config: Path) -> Namespace:
        arguments: Namespace = self.outer.parse_args(["serve", "--config", str(config)])
        return arguments

    def engine_arguments(self, config: Path) -> Any:  # noqa: ANN401 - of vLLM
        from vllm import AsyncEngineArgs  # noqa: PLC0415

        return AsyncEngineArgs.from_cli_args(self.parse(config))


@pytest.fixture(scope="module")
def serve() -> Serve:
    return Serve()


def written(folder: Path, text: str, arguments: dict[str, ArgumentValue]) -> Path:
    path = folder / "serve.yaml"
    path.write_text(write(vllm_config, text, arguments, source="serve.yaml"), encoding="utf-8")
    return path


ANY_KIND: dict[str, ArgumentValue] = {
    "model": "m",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.3,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "async_scheduling": False,
    "disable_log_stats": True,
    "seed": -1,
    "max_model_len": 4096,
    "kv_cache_dtype": "auto",
    "cudagraph_capture_sizes": [1, 2, 4],
    "hf_overrides": {"rope_theta": 1.5, "nested": {"on": True, "none": None}},
    "kv_cache_memory_bytes": 256 * 2**20,
    "quantization": None,
}


@pytest.mark.parametrize(
    "before",
    [
        "",
        "model: m\nmax-num-seqs: 8\nport: 8000\n",
        (
            "model: m\nmax-num-seqs: 8\nno-enforce-eager: true\nenable_prefix_caching: true\n"
            "quantization: fp8\nseed: 1\n"
        ),
        (
            "model: m\nenable-prefix-caching: false\ndevice-memory-utilization: 0.9\n"
            "max_num_seqs: '8'\n"
        ),
    ],
)
def test_vllm_gets_every_value_with_its_type(serve: Serve, tmp_path: Path, before: str) -> None:
    parsed = serve.parse(written(tmp_path, before, ANY_KIND))
    assert {name: getattr(parsed, name) for name in ANY_KIND} == ANY_KIND


def test_vllm_builds_its_engine_arguments_from_a_profile(serve: Serve, tmp_path: Path) -> None:
    path = written(tmp_path, "", rollout.settings(profile(), live_knob=True))
    arguments = serve.engine_arguments(path)
    assert (arguments.model, arguments.max_num_seqs, arguments.max_num_active_seqs) == ("m", 32, 16)
    assert arguments.compilation_config.pass_config.fuse_norm_quant is True


def test_vllm_accepts_the_shipped_model_with_the_settings_of_a_profile(
    serve: Serve, tmp_path: Path
) -> None:
    shipped = profile(
        engine={
            **{name: ENGINE[name] for name in ("max_num_seqs", "enforce_eager")},
            "model": "tuner:tiny",
            "load_format": "dummy",
            "max_num_batched_tokens": 512,
        }
    )
    path = written(tmp_path, "", rollout.settings(shipped, live_knob=False))
    arguments = serve.engine_arguments(path)
    arguments.skip_tokenizer_init = True  # only the resolving is tried here
    config = arguments.create_engine_config()
    assert config.model_config.model == models.model_path("tuner:tiny")
    assert config.scheduler_config.max_num_seqs == 16


def test_texts_reach_vllm_as_they_are(serve: Serve, tmp_path: Path) -> None:
    for text in ["on", "1", "null", "a: b #c", "ü", "a, b", "{x", "2025-01-01", "$(x) `y` ;z", "~"]:
        assert serve.parse(written(tmp_path, "", {"model": text})).model == text


def test_vllm_serve_still_drops_false(serve: Serve, tmp_path: Path) -> None:
    """Why False is written as ``no-…: true``. When this fails, both forms do."""
    path = tmp_path / "serve.yaml"
    path.write_text("model: m\nenable-prefix-caching: false\n")
    assert serve.parse(path).enable_prefix_caching is None


def test_the_arguments_that_tuner_reasons_about_exist() -> None:
    from vllm import AsyncEngineArgs  # noqa: PLC0415

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    reasoned = {*rollout.LIMITED, *rollout.LIMITED.values(), *rollout.OVERRULES}
    assert reasoned | set(rollout.OVERRULES.values()) | rollout.OF_THE_MODEL <= known


def test_the_example_is_a_file_that_vllm_takes(serve: Serve) -> None:
    example = ROOT / "examples" / "serve.yaml"
    parsed = serve.parse(example)
    stated = read(vllm_config, example.read_text(encoding="utf-8"), source="serve.yaml")
    assert parsed.max_num_seqs == stated["max_num_seqs"].value
    assert parsed.enable_prefix_caching is False
    assert set(yaml.safe_load(example.read_text(encoding="utf-8"))) >= {"model", "middleware"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.file)
def test_vllm_takes_what_every_kind_of_file_makes_of_a_profile(
    serve: Serve, example: Example
) -> None:
    words = WORDS[example.file](applied(example))
    parsed = serve.parse_words(words)
    model = getattr(parsed, "model_tag", None) or parsed.model
    found = {name: getattr(parsed, name) for name in ENGINE_OF_EXAMPLES if name != "model"}
    assert {"model": model, **found} == ENGINE_OF_EXAMPLES


def test_a_switch_still_takes_no_value(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """Why ``--enable-prefix-caching=false`` is mended, not read. When this fails, it is False."""
    with pytest.raises(SystemExit):
        serve.parse_words(["m", "--enable-prefix-caching=false"])
    assert "ignored explicit argument 'false'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--max-num-seqs", "4"],
        ["--max-num-seqs", "4", "m"],
        ["--enforce-eager", "m", "--seed", "1"],
        ["-O3", "--max-num-seqs=4", "m"],
        ["-O", "2", "m"],
        ["--no-enable-prefix-caching", "m"],
        ["--model", "m"],
    ],
)
def test_a_model_is_found_where_vllm_finds_it(serve: Serve, words: list[str]) -> None:
    parsed = serve.parse_words(words)
    unit = f"[Service]\nExecStart=/usr/bin/vllm serve {shlex.join(words)}\n"
    stated = read("systemd", unit, source="vllm.service")
    assert stated["model"].value == "m" == (parsed.model_tag or parsed.model)


TINY: dict[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "dtype": "float32",
    "max_num_seqs": 3,
    "max_num_batched_tokens": 512,
    "max_model_len": 256,
    "kv_cache_memory_bytes": 64 * 2**20,
    "enforce_eager": True,
    "load_format": "dummy",
}


def scripts(kind: str) -> str:
    """Return what starts the server once the profile is in an example of this kind."""
    text = applied_to_tiny(BY_FILE[kind])
    if kind == "vllm.env":
        return "set -a; . ./vllm.env; exec vllm serve $VLLM_ARGS"
    if kind == "statefulset.yaml":  # its own script, flags and all
        return str(yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["args"][0])
    return shlex.join(["exec", "vllm", "serve", *WORDS[kind](text)])


def applied_to_tiny(example: Example) -> str:
    """Return the example with the tiny model and its profile in it."""
    arguments = rollout.settings(profile(engine=TINY), live_knob=False)
    text = example.text.replace("/models", "models").replace(MODEL, str(arguments["model"]))
    text = re.sub(r"--port([ =])8000", r"--port\g<1>0", text)
    return write(example.kind, text, arguments, source=example.file)


@pytest.mark.long
@pytest.mark.parametrize("kind", STARTED)
def test_a_server_started_from_a_file_runs_with_the_profile(tmp_path: Path, kind: str) -> None:
    if kind == "vllm.env":
        (tmp_path / kind).write_text(applied_to_tiny(BY_FILE[kind]))
    script = scripts(kind).rstrip() + " --uds server.sock"
    with started(script, tmp_path) as log:
        assert re.search(r"non-default args: .*'max_num_seqs': 3\b", log)
        assert re.search(r"non-default args: .*'max_num_batched_tokens': 512\b", log)
        said = answered(tmp_path / "server.sock", "/metrics")
    config = prometheus.parse(said, source=kind).cache_config
    assert config["kv_cache_memory_bytes"] == str(64 * 2**20)
    assert unserved(profile(engine=TINY), said) == []


def test_a_server_started_from_the_config_file_of_a_measured_profile_answers(
    tmp_path: Path,
) -> None:
    done = in_process.tuner(tmp_path, "apply", str(MEASURED), "serve.yaml")
    assert done.returncode == 0, done.stderr
    measured = load(MEASURED)
    with started("exec vllm serve --config serve.yaml --uds server.sock", tmp_path) as log:
        model = json.loads(answered(tmp_path / "server.sock", "/v1/models"))["data"][0]["id"]
        body = {"model": model, "prompt": [20, 21, 22], "max_tokens": 5, "ignore_eos": True}
        reply = json.loads(answered(tmp_path / "server.sock", "/v1/completions", body))
        said = answered(tmp_path / "server.sock", "/metrics")
    assert reply["usage"]["completion_tokens"] == 5
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        assert re.search(rf"non-default args: .*'{name}': {measured.engine[name]}\b", log)
    config = prometheus.parse(said, source="serve.yaml").cache_config
    assert config["kv_cache_memory_bytes"] == str(measured.engine["kv_cache_memory_bytes"])
    assert unserved(measured, said) == []


def answered(socket_path: Path, path: str, body: dict[str, Any] | None = None) -> str:
    """Return what the server says at this path: to a GET, or to a POST of a body."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path))
        client = http.client.HTTPConnection("localhost")
        client.sock = connection
        if body is None:
            client.request("GET", path)
        else:
            headers = {"Content-Type": "application/json"}
            client.request("POST", path, json.dumps(body), headers)
        return client.getresponse().read().decode()


@contextmanager
def started(script: str, folder: Path) -> Iterator[str]:
    """Run a server until it answers; give its log; stop it."""
    log = folder / "log"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        server = subprocess.Popen(
            ["sh", "-c", script],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while "Application startup complete" not in log.read_text():
            with suppress(subprocess.TimeoutExpired):
                code = server.wait(0.5)
                pytest.fail(f"the server ended with {code}:\n{log.read_text()[-2000:]}")
        yield log.read_text()
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
