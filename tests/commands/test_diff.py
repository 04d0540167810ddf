"""`tuner diff`: in what another profile, or what is deployed, differs."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.profile.test_admission import with_twin
from tests.support.profiles import ENGINE, profile
from tuner import cli
from tuner.profile.profile import save, seal
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import ServedModel, listed, model_mismatch

SERVE = "model: m\nmax-num-seqs: 32\nmax-num-active-seqs: 4\nport: 8000\n"
FEW = {name: ENGINE[name] for name in ("model", "max_num_seqs", "max_num_batched_tokens")}
Diff = Callable[..., tuple[int, str, str]]


@pytest.fixture
def diff(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Diff:
    """Run the command in a folder with two profiles and a file."""
    monkeypatch.chdir(tmp_path)
    save(profile(engine=FEW), Path("a.yaml"))
    other = profile(
        engine={**FEW, "max_num_seqs": 8, "seed": 1},
        reason="8 is enough",
        versions={"vllm": "0.31.0"},
        device={"name": "NVIDIA A10"},
    )
    save(other, Path("b.yaml"))
    Path("serve.yaml").write_text(SERVE)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tuner", "diff", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return exited.value.code, captured.out, captured.err

    return run


def test_a_profile_does_not_differ_from_itself(diff: Diff) -> None:
    assert diff("a.yaml", "a.yaml", "--check") == (0, "no difference\n", "")


def test_of_two_profiles_everything_that_differs_is_said(diff: Diff) -> None:
    code, out, _ = diff("a.yaml", "b.yaml")
    assert code == 0
    shown = [" ".join(line.split()) for line in out.splitlines()]
    step = "99.5% met the SLO, p95 TPOT 48.5 ms, p99 E2EL 60.25 ms"
    assert shown == [
        "a.yaml b.yaml",
        "engine",
        f"max_num_seqs 16 8 16: {step}; 8: {step}",
        "seed - 1",
        "decision",
        'verdict "32 adds 0.4 % goodput and costs +38 % p95 decode time pe... "8 is enough"',
        'interval "16-16" "8-8"',
        "measured on",
        'vllm "0.32.0" "0.31.0"',
        'device.kind "cpu" -',
        'device.name "any" "NVIDIA A10"',
    ]


def test_of_two_profiles_the_admission_limits_are_compared(diff: Diff) -> None:
    save(with_twin(ttft_ms=500.0), Path("a.yaml"))
    save(with_twin(ttft_ms=100.0), Path("b.yaml"))
    differing = json.loads(diff("a.yaml", "b.yaml", "--json")[1])["differences"]
    assert {
        one["name"]: (one["profile"], one["other"])
        for one in differing
        if one["section"] == "admission"
    } == {"max_num_queued_tokens": (2500, 500), "max_num_queued_reqs": (24, 17)}


@pytest.mark.parametrize(
    ("windows", "said"),
    [("0s+60s", "+12.5%"), ("90s+60s", "measured in other windows: not comparable")],
)
def test_promises_of_other_windows_are_not_compared(diff: Diff, windows: str, said: str) -> None:
    for name, goodput_rps, replayed in (("a.yaml", 8.0, "0s+60s"), ("b.yaml", 9.0, windows)):
        save(promising(goodput_rps, replayed), Path(name))
    differing = json.loads(diff("a.yaml", "b.yaml", "--json")[1])["differences"]
    by_name = {one["name"]: one for one in differing}
    assert by_name["goodput_rps"]["evidence"] == said
    assert ("windows" in by_name) == (windows != "0s+60s")


def promising(goodput_rps: float, windows: str) -> ServingProfile:
    """Return a profile whose promise was measured there."""
    one = profile(engine=FEW)
    sections = {name: getattr(one, name) for name in type(one).model_fields}
    del sections["schema_version"], sections["digest"]
    sections["promise"] = one.promise.model_copy(update={"goodput_rps": goodput_rps})
    sections["validity"] = one.validity.model_copy(update={"windows": [windows]})
    return seal(**sections)


def test_of_a_file_what_apply_would_change_is_said_and_what_undoes_it(diff: Diff) -> None:
    code, out, err = diff("a.yaml", "serve.yaml", "--json", "--check")
    document = json.loads(out)
    assert (code, document["same"]) == (6, False)
    assert [(one["name"], one["profile"], one["other"]) for one in document["differences"]] == [
        ("max_num_seqs", 16, 32),
        ("max_num_batched_tokens", 8192, None),
        ("max_num_active_seqs", None, 4),
    ]
    assert document["differences"][2]["evidence"] == "undoes max_num_seqs"
    assert err.splitlines()[0] == "Error: serve.yaml: differs from a.yaml in 3 things"


METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.9",kv_cache_memory_bytes="None"} 1.0
"""


SAME = METRICS.replace("fp8", "auto")
UNTOLD = "what the server does not tell: max_num_seqs, max_num_batched_tokens"
Answers = dict[str, str]


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """Serve texts as vLLM does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def cards(*models: tuple[str, str | None, str | None]) -> str:
    """Return the answer of /v1/models for (name, root, parent)."""
    return json.dumps(
        {
            "object": "list",
            "data": [
                {"id": name, "root": root, "parent": parent, "max_model_len": 2048}
                for name, root, parent in models
            ],
        }
    )


@pytest.fixture
def server() -> Iterator[str]:
    """Serve /version and /metrics, and no models, as with --api-key."""
    with serving({"/metrics": METRICS, "/version": '{"version": "0.9.1"}'}) as url:
        yield url


def test_a_running_server_is_compared_as_far_as_it_tells(diff: Diff, server: str) -> None:
    engine = {**FEW, "gpu_memory_utilization": 0.3, "kv_cache_dtype": "auto", "block_size": 16}
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    measured = profile(engine=engine, versions={"vllm": "0.32.0"}, environment=variables)
    save(measured, Path("a.yaml"))
    code, out, _ = diff("a.yaml", "--url", server, "--json", "--check")
    assert code == 6
    document = json.loads(out)
    assert [(one["name"], one["profile"], one["other"]) for one in document["differences"]] == [
        ("gpu_memory_utilization", 0.3, 0.9),
        ("kv_cache_dtype", "auto", "fp8"),
        ("vllm", None, None),
    ]
    assert document["differences"][2]["evidence"] == (f"vLLM 0.32.0, {server} has 0.9.1")
    untold = ["model", "max_num_seqs", "max_num_batched_tokens", "OMP_NUM_THREADS"]
    assert document["untold"] == untold


def test_what_a_server_does_not_tell_is_no_agreement(diff: Diff) -> None:
    answers = {"/metrics": SAME, "/v1/models": cards(("m", "m", None))}
    save(profile(engine={**FEW, "block_size": 16, "max_model_len": 2048}), Path("a.yaml"))
    with serving(answers) as url:
        assert diff("a.yaml", "--url", url, "--check") == (
            0,
            f"no difference in what the server tells\n{UNTOLD}\n",
            "",
        )
    save(profile(engine={**FEW, "max_model_len": 4096}), Path("a.yaml"))
    with serving(answers) as url:
        shown = diff("a.yaml", "--url", url)[1].splitlines()
    assert shown[2].split() == ["max_model_len", "4096", "2048"]
    assert shown[-1] == UNTOLD


def test_another_model_than_the_profiles_is_a_difference(diff: Diff) -> None:
    with serving({"/metrics": SAME, "/v1/models": cards(("m", "acme/other", None))}) as url:
        code, out, _ = diff("a.yaml", "--url", url, "--json", "--check")
    (one,) = json.loads(out)["differences"]
    assert code == 6
    assert (one["section"], one["name"], one["profile"], one["other"], one["evidence"]) == (
        *("engine", "model", "m", "acme/other", "served as m"),
    )
    named = 'vllm:num_requests_running{model_name="n"} 0\n'
    with serving({"/metrics": named}) as url:
        _, out, _ = diff("a.yaml", "--url", url, "--json")
    (one,) = json.loads(out)["differences"]
    assert (one["other"], one["evidence"]) == (
        *("n", "a name, which the server may have been given: --served-model-name"),
    )


@pytest.mark.parametrize(
    ("model", "engine", "served", "is_same"),
    [
        (None, {}, [], True),  # which tells nothing
        (None, {}, [ServedModel("m", "m")], True),
        (None, {}, [ServedModel("alias", "m")], True),
        (None, {}, [ServedModel("m", "acme/other")], False),
        (None, {}, [ServedModel("m", "/mnt/models")], True),
        (None, {}, [ServedModel("n", "/mnt/models")], False),
        (None, {"served_model_name": "n"}, [ServedModel("n", "/mnt/models")], True),
        (None, {"served_model_name": ["k", "n"]}, [ServedModel("n")], True),
        (None, {"model": "acme/m"}, [ServedModel("x", "/h/models--acme--m/snapshots/9f")], True),
        (None, {"model": "acme/n"}, [ServedModel("acme/n", "/models--acme--m/snapshots/9")], False),
        (None, {}, [ServedModel("n"), ServedModel("m")], True),
        ("n", {}, [ServedModel("n"), ServedModel("m")], False),
        ("m", {}, [ServedModel("n"), ServedModel("m")], True),
        ("k", {}, [ServedModel("n")], True),  # whoever asks for it is told that there is none
    ],
)
def test_a_model_is_the_profiles_by_what_the_server_was_started_with_or_else_by_its_name(
    model: str | None, engine: dict[str, object], served: list[ServedModel], is_same: bool
) -> None:
    found = model_mismatch(profile(engine={**FEW, **engine}), served, model=model)
    assert (found is None) == is_same


@pytest.mark.parametrize(
    ("served", "is_sure"),
    [
        ([ServedModel("x", "acme/n")], True),
        ([ServedModel("x", "/hub/models--acme--n/snapshots/9f")], True),
        ([ServedModel("x", "/mnt/models")], False),
        ([ServedModel("x", "s3://bucket/n")], False),
        ([ServedModel("x")], False),
        ([ServedModel("x", "acme/n"), ServedModel("y", "/mnt/models")], False),
    ],
)
def test_another_model_is_sure_where_another_repository_was_fetched(
    served: list[ServedModel], is_sure: bool
) -> None:
    found = model_mismatch(profile(engine={**FEW, "model": "acme/m"}), served)
    assert found is not None
    assert found.is_sure == is_sure


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 99999, '{"data": null}', '{"data": [null, {"id": 1}]}'),
        '{"data": [{"id": "adapter", "root": "r", "parent": "m"}]}',
        "<html></html>",
    ],
)
def test_what_lists_no_models_is_no_list(text: str) -> None:
    assert listed(text) == ()


def test_a_server_that_says_odd_things_moves_no_cursor(diff: Diff) -> None:
    answers = {
        "/metrics": 'vllm:cache_config_info{cache_dtype="\x1b[2J",engine="0"} 1.0\n',
        "/version": '{"version": "\\u001b[2J"}',
        "/v1/models": cards(("\x1b[2J", "\x1b[2J", None)),
    }
    engine = {**FEW, "kv_cache_dtype": "auto"}
    save(profile(engine=engine, versions={"vllm": "0.32.0"}), Path("a.yaml"))
    with serving(answers) as url:
        code, out, err = diff("a.yaml", "--url", url)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
    with serving({**answers, "/version": "[" * 99999}) as url:
        assert diff("a.yaml", "--url", url)[0] == 0


def test_what_the_engines_of_a_server_say_differently_is_a_difference(diff: Diff) -> None:
    both = "".join(
        f'vllm:cache_config_info{{block_size="16",engine="{one}",'
        f'gpu_memory_utilization="0.{one}"}} 1.0\n'
        for one in (8, 9)
    )
    engine = {**FEW, "gpu_memory_utilization": 0.8, "block_size": 16}
    save(profile(engine=engine), Path("a.yaml"))
    with serving({"/metrics": both}) as url:
        _, out, _ = diff("a.yaml", "--url", url, "--json")
    (one,) = json.loads(out)["differences"]
    assert (one["name"], one["other"]) == ("gpu_memory_utilization", "0.8, 0.9")


def test_an_address_that_is_no_server_is_said(diff: Diff, server: str) -> None:
    code, out, err = diff("a.yaml", "--url", f"{server}/nothing")
    assert (code, out) == (3, "")
    assert err.splitlines()[0] == f"Error: {server}/nothing/metrics: answers 404"
    assert diff("a.yaml", "--url", "http://127.0.0.1:1")[0] == 3
    for url in ("ftp://x", "http://[::1", "http://"):
        assert diff("a.yaml", "--url", url)[0] == 2
    assert diff("a.yaml")[0] == 2
    assert diff("a.yaml", "b.yaml", "--url", server)[0] == 2
