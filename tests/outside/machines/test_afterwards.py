"""What follows a sweep: each command on its profile or run, on the machine that it was made for."""

import gzip
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.outside.conftest import FreeClock
from tests.outside.machines.swept import HERE, Swept, options
from tests.outside.table import BAD_INPUT, GATE_FAILED, OK, UNDECIDED, USAGE, run

KNEE = ("--trace", HERE / "traces" / "chat.jsonl")
WORLD = HERE / "knee" / "world.yaml"


@pytest.fixture
def knee(swept: Swept, tmp_path: Path) -> Path:
    """A folder with the profile and the run of a machine whose best cap is 16."""
    shutil.copytree(swept("knee").folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "slow.yaml").write_text(WORLD.read_text().replace("a: 0.020", "a: 0.030"))
    return tmp_path


def test_show_says_the_cap_and_flags_are_for_pasting(knee: Path) -> None:
    done = run(knee, "show", "profile.yaml")
    assert done.code == OK
    assert "16" in done.stdout.splitlines()[0]
    assert run(knee, "show", "profile.yaml", "--flags").stdout == "--max-num-seqs=16\n"


@pytest.mark.parametrize(
    ("given", "replicas", "share"),
    [((), {1, 2}, (0.85, 1.0)), (("--load", "4"), {4, 5, 6}, (0.9, 1.0)),
     (("--load", "4", "--replicas", "2"), {4, 5, 6}, (0.0, 0.15)),
     (("--load", "1", "--replicas", "1"), {1, 2}, (0.88, 0.97)),
     (("--load", "35rps"), {10, 11, 12}, (0.9, 1.0))],
)  # fmt: skip
def test_plan_says_how_many_replicas_a_load_needs(
    knee: Path, given: tuple[str, ...], replicas: set[int], share: tuple[float, float]
) -> None:
    plan = run(knee, "plan", "profile.yaml", "--json", *given).json
    assert plan["replicas_needed"] in replicas
    assert plan["max_num_seqs"] == 16
    (chosen,) = [step for step in plan["steps"] if step["max_num_seqs"] == 16]
    assert share[0] <= chosen["attainment"] <= share[1]


def test_plan_speaks_of_all_servers_that_share_the_trace(swept: Swept, tmp_path: Path) -> None:
    shutil.copytree(swept("replicas").folder, tmp_path, dirs_exist_ok=True)
    plan = run(tmp_path, "plan", "profile.yaml", "--json").json
    assert plan["rps"] == pytest.approx(11.3, rel=0.05)
    assert (plan["load"], plan["router"]) == (1.0, "rr")
    assert plan["replicas_needed"] in {3, 4}
    by_cap = {step["max_num_seqs"]: step["replicas"] for step in plan["steps"]}
    assert by_cap[4] > by_cap[16]


def test_plan_finds_the_cap_that_keeps_what_is_required(knee: Path) -> None:
    required = ("--load", "0.5", "--replicas", "1", "--require", "p95 tpot <= 24ms")
    free, bound = (
        run(knee, "plan", "profile.yaml", "--json", *given).json["best"]
        for given in (required[:4], required)
    )
    assert (free, bound) == (16, 4)


def test_verify_keeps_the_promise_on_the_machine_and_breaks_it_on_a_slower_one(knee: Path) -> None:
    verify = ("verify", "profile.yaml", *KNEE, "--json", "--world")
    same, slower = run(knee, *verify, WORLD), run(knee, *verify, "slow.yaml", "--force")
    assert (same.code, slower.code) == (OK, GATE_FAILED)
    gates = {gate["name"]: gate for gate in same.json["gates"]}
    assert all(gate["kept"] for gate in gates.values())
    assert gates["attainment"]["measured"] == pytest.approx(0.92, abs=0.04)
    assert gates["tpot_p95_ms"]["measured"] == pytest.approx(31.0, rel=0.05)
    assert gates["e2el_p95_ms"]["promised"] == pytest.approx(7925, rel=0.15)
    broken = {gate["name"] for gate in slower.json["gates"] if not gate["kept"]}
    assert {"attainment", "e2el_p95_ms"} <= broken


def test_verify_refuses_another_machine_and_keeps_what_is_required(knee: Path) -> None:
    verify = ("verify", "profile.yaml", *KNEE, "--world")
    assert run(knee, *verify, "slow.yaml").code == GATE_FAILED
    assert not (knee / "runs").exists()
    assert run(knee, *verify, WORLD, "--require", "p99 e2el <= 1s").code == GATE_FAILED
    assert run(knee, *verify, WORLD, "--require", "p99 e2el <= 60s").code == OK


def test_a_stored_run_is_rescored_under_another_slo(knee: Path) -> None:
    def rescored(slo: str) -> Any:  # noqa: ANN401 - a document
        done = run(knee, "show", "run", "--slo", slo, "-o", "again.yaml", "--json")
        assert done.code in {OK, UNDECIDED}, done.stderr
        return done.json

    loose, tight = rescored("ttft=30s,tpot=200ms"), rescored("ttft=1072ms,tpot=25ms")
    share = {step["max_num_seqs"]: step["attainment"] for step in loose["curve"]}
    assert (loose["max_num_seqs"], share[16], share[32]) == (16, 1.0, 1.0)
    assert max(step["attainment"] for step in tight["curve"]) < 0.5
    assert tight["verdict"] == "overloaded"


def test_what_is_decided_again_and_written_nowhere_is_in_no_file(knee: Path) -> None:
    given = ("show", "run", "--slo", "ttft=30s,tpot=200ms")
    assert run(knee, *given, "--json").json["profile"] is None
    assert run(knee, *given).stdout.splitlines()[-1].endswith("--slo=ttft=30s,tpot=200ms")


def test_a_verification_does_not_continue_with_another_trace(knee: Path) -> None:
    lines = KNEE[1].read_text().splitlines(keepends=True)
    verify = ("verify", "profile.yaml", "--world", WORLD, "--trace", "t.jsonl", "--run-dir", "v")
    (knee / "t.jsonl").write_text("".join(lines))
    assert run(knee, *verify).code == OK
    done = run(knee, "resume", "v", "--budget", "9m")
    assert done.code == USAGE
    assert "--budget" in done.error
    (knee / "t.jsonl").write_text("".join(lines[:100]))
    done = run(knee, *verify)
    assert done.code == BAD_INPUT
    assert "trace_digest" in done.error


def test_a_finished_run_is_resumed_without_measuring(knee: Path, swept: Swept) -> None:
    before = (knee / "run" / "journal.jsonl").read_bytes()
    done = run(knee, "sweep", *options("knee"), "--run-dir", "run", "--json")
    assert done.json == swept("knee").done.json
    assert (knee / "run" / "journal.jsonl").read_bytes() == before


def test_whoever_reads_a_profile_of_one_rank_of_two_is_told(swept: Swept, tmp_path: Path) -> None:
    shutil.copytree(swept("ranks").folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "serve.yaml").write_text("model: tuner:tiny\nmax-num-seqs: 256\n")
    for command in (("plan", "profile.yaml"), ("apply", "profile.yaml", "serve.yaml")):
        done = run(tmp_path, *command)
        assert "data-parallel" in done.stdout + done.stderr, command


def test_what_was_undecided_is_not_rolled_out(swept: Swept, tmp_path: Path) -> None:
    shutil.copytree(swept("inconclusive").folder, tmp_path, dirs_exist_ok=True)
    serve = tmp_path / "serve.yaml"
    serve.write_text("model: tuner:tiny\nmax-num-seqs: 256\n")
    assert run(tmp_path, "apply", "profile.yaml", "serve.yaml").code == UNDECIDED
    assert serve.read_text() == "model: tuner:tiny\nmax-num-seqs: 256\n"


def test_a_rollback_loses_no_later_edit(knee: Path) -> None:
    serve = knee / "serve.yaml"
    serve.write_text("model: tuner:tiny\nmax-num-seqs: 256\n")
    assert run(knee, "apply", "profile.yaml", "serve.yaml").code == OK
    edited = serve.read_text() + "port: 9000\n"
    serve.write_text(edited)
    refused = run(knee, "rollback", "serve.yaml")
    assert refused.code == BAD_INPUT
    assert "serve.yaml" in refused.error
    assert serve.read_text() == edited
    assert run(knee, "rollback", "serve.yaml", "--force").code == OK
    assert serve.read_text() == "model: tuner:tiny\nmax-num-seqs: 256\n"


def test_refine_proves_a_better_cap_between_the_doublings(swept: Swept, tmp_path: Path) -> None:
    shutil.copytree(swept("refinable").folder, tmp_path, dirs_exist_ok=True)
    on = (*KNEE, "--world", HERE / "refinable" / "world.yaml")
    done = run(tmp_path, "refine", "profile.yaml", *on, "-o", "refined.yaml", "--json")
    assert done.code == OK, done.stderr
    refined = done.json
    assert refined["refined"]
    assert refined["knee"]["max_num_seqs"] in {8, 16}
    assert 9 <= refined["chosen"]["max_num_seqs"] <= 14
    assert run(tmp_path, "verify", "refined.yaml", *on).code == OK


def test_refine_keeps_the_knee_where_nothing_is_better(knee: Path) -> None:
    search = ("--search", "max_num_batched_tokens=256,2048", "--budget", "10m")
    done = run(knee, "refine", "profile.yaml", *KNEE, "--world", WORLD, *search, "--json")
    assert done.code == OK, done.stderr
    assert not done.json["refined"]
    assert done.json["chosen"] == done.json["knee"] == {
        "max_num_seqs": 16, "max_num_batched_tokens": 2048,
    }  # fmt: skip


def test_compare_shows_what_the_tuned_cap_gains(knee: Path) -> None:
    more = ("--profile", "profile.yaml", "--loads", "recorded", "--approaches", "untuned,tuned")
    done = run(knee, "compare", *KNEE, "--world", WORLD, *more, "--json")
    assert done.code == OK, done.stderr
    assert done.json["tuned"]["max_num_seqs"] == 16
    (table,) = done.json["tables"]
    untuned, tuned = (row["numbers"] for row in table["rows"])
    assert tuned["tpot_s"]["p95"] == pytest.approx(0.0322, rel=0.1)
    assert untuned["tpot_s"]["p95"] > 1.5 * tuned["tpot_s"]["p95"]
    assert tuned["requests_per_s"] == pytest.approx(3.4, rel=0.05)


@contextmanager
def recorded(name: str, now_s: FreeClock) -> Iterator[str]:
    """Serve the /metrics that a simulated server once had, by the clock."""
    frames = json.loads(gzip.decompress((HERE / "watch" / f"{name}.json.gz").read_bytes()))
    begin_s = now_s()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = round((now_s() - begin_s) / frames["every_s"])
            lines = [f"{key} {values[place]}\n" for key, values in frames["series"].items()]
            body = "".join(lines) if self.path == "/metrics" else '{"version": "0.32.0"}'
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("server", "length", "ends"),
    [
        ("valid", "400s", ("still valid", OK)),
        ("slow", "400s", ("re-tune now", GATE_FAILED)),
        ("drifted", "400s", ("drifting", OK)),
        ("valid", "60s", ("not enough evidence", UNDECIDED)),
    ],
)
def test_watch_judges_a_server_by_its_metrics(
    server: str, length: str, ends: tuple[str, int], swept: Swept, free_clock: FreeClock
) -> None:
    folder = swept("today").folder
    with recorded(server, free_clock) as url:
        watch = ("--url", url, "--for", length)
        done = run(folder, "watch", "profile.yaml", *watch, "--json")
    assert (json.loads(done.stdout.splitlines()[-1])["verdict"], done.code) == ends
