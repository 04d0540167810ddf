"""A trace out of Prometheus alone: as many requests, as long, and as many at a time."""

import asyncio
import json
import random
import shlex
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, pairwise
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.scraped import (
    BUCKETS,
    Served,
    exposition,
    in_flight,
    open_metrics,
    prometheus,
    write_blocks,
)
from tests.support.toy_server import application, served
from tuner.capture import history, prometheus_api
from tuner.capture.synthetic import MAX_REQUESTS, trace_of
from tuner.commands.capture import run as capture_run
from tuner.commands.capture.options import PrometheusOptions
from tuner.engines.seam import EngineRequest, Reply
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldStep
from tuner.errors import InputError, TunerError, UsageError
from tuner.system import http_client
from tuner.system.http import HttpRequest, HttpResponse
from tuner.trace import trace
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row

EPOCH_S = 1_770_000_000.0
SCRAPE_S = 15.0
HOUR = [SCRAPE_S * place for place in range(241)]
CAP = 8
MACHINE = World(step=WorldStep(a=0.02, b=0.001, n0=64, c=1e-5), engine_start=0.0)


def simulated(plan: Sequence[tuple[float, int, int]]) -> list[Served]:
    """Serve (arrival, prompt, output) at a cap of 8 on a machine of 20 to 28 ms an iteration."""

    async def go() -> list[Served]:
        engine = await SimStarter(MACHINE).start(max_num_seqs=CAP)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        done: list[Served] = []

        async def one(place: int, at_s: float, prompt: int, output: int) -> None:
            await asyncio.sleep(start_s + at_s - loop.time())
            reply = Reply()
            await engine.generate(EngineRequest(str(place), [7] * prompt, output), reply)
            assert reply.last_token_s is not None
            assert reply.queue_s is not None
            reason = "stop" if place % 3 == 0 else "length"
            end_s = reply.last_token_s - start_s
            done.append(Served(at_s, at_s + reply.queue_s, end_s, prompt, output, reason))

        try:
            async with asyncio.TaskGroup() as group:
                for place, request in enumerate(plan):
                    group.create_task(one(place, *request))
        finally:
            await engine.stop()
        return done

    return run(go())


def busy_hour() -> list[Served]:
    """An hour whose rate rises from 1 to 3 requests/s and falls again; at its height they queue."""
    rng = random.Random(7)
    plan, now_s = [], 0.0
    while now_s < 3600:
        now_s += rng.expovariate(3.0 if 1200 < now_s < 2400 else 1.0)
        plan.append((now_s, rng.choice([12, 40, 170, 600]), max(1, round(rng.expovariate(1 / 90)))))
    return simulated(plan)


@pytest.fixture(scope="module")
def busy() -> list[Served]:
    return busy_hour()


@pytest.fixture(scope="module")
def url(busy: list[Served], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that remembers one hour of several servers, told apart by ``job``."""
    few = [Served(float(at), at + 1.0, at + 5.0, 20, 10) for at in range(0, 3600, 10)]
    quiet = [time_s for time_s in HOUR if not 1000 < time_s < 2000]
    again = [time_s for time_s in HOUR if time_s > 2000]
    samples = [
        *exposition(busy, HOUR, job="busy", model_name="m"),
        *exposition(few, quiet, job="gap", model_name="m", instance="a:8000"),
        *exposition([one for one in few if one.end_s < 990], HOUR[:66], job="restart"),
        *exposition(few, again, since_s=1990.0, job="restart"),
        *exposition(few, HOUR, job="two", model_name="m", instance="a"),
        *exposition(few, HOUR, job="two", model_name="m", instance="b"),
        *exposition(few, HOUR[:20], job="models", model_name="m"),
        *exposition(few, HOUR[:20], job="models", model_name="n"),
        *exposition([], HOUR[:20], job="idle"),
        *exposition(few, HOUR[:20], job="moved", pod="a"),
        *exposition(few, HOUR[30:50], since_s=HOUR[29], job="moved", pod="b"),
        *(
            (name.replace("vllm:", "vllm_"), value, time_s)
            for name, value, time_s in exposition(few, HOUR[:20], job="underscore")
        ),
        *(
            sample
            for sample in exposition(few, HOUR[:20], job="relabelled")
            if "prompt_tokens_bucket" not in sample[0]
        ),
    ]
    folder = tmp_path_factory.mktemp("prometheus")
    write_blocks(open_metrics(samples, epoch_s=EPOCH_S), folder)
    with prometheus(folder) as address:
        yield address


def engines(url: str, job: str) -> tuple[history.EngineHistory, ...]:
    place = prometheus_api.PrometheusQuery(url, EPOCH_S, EPOCH_S + 3600, f'job="{job}"')
    return history.engines(prometheus_api.samples(place, history.METRICS), place=url)


def rows_of(url: str, job: str, seed: int = 0) -> list[Row]:
    return trace_of(engines(url, job), seed=seed)[1]


def begin_of(header: TraceHeader) -> float:
    """Return when the trace begins, on the clock of what was served."""
    return datetime.fromisoformat(header.time_origin or "").timestamp() - EPOCH_S


def asked(url: str, job: str, output: Path, *, seed: int = 0) -> PrometheusOptions:
    begin, end = f"{EPOCH_S:.0f}", f"{EPOCH_S + 3600:.0f}"
    return PrometheusOptions(
        url=url, output=output, from_=begin, to=end, selector=f'job="{job}"', seed=seed
    )


def test_as_many_requests_as_finished_or_were_in_flight(url: str, busy: list[Served]) -> None:
    end_s = HOUR[-1]
    finished = [one for one in busy if one.end_s <= end_s]
    rows = rows_of(url, "busy")
    assert len(rows) == len(finished) + in_flight(busy, end_s)
    reasons = Counter(row.finish_reason for row in rows[: len(finished)])
    assert reasons == Counter(one.reason for one in finished)


def test_lengths_add_up_and_lie_in_their_buckets(url: str, busy: list[Served]) -> None:
    finished = [one for one in busy if one.end_s <= HOUR[-1]]
    rows = rows_of(url, "busy")[: len(finished)]
    edges = np.array([0, *BUCKETS, 10**6])
    for ours, theirs in (
        ([row.input_length for row in rows], [one.input_length for one in finished]),
        ([row.output_length for row in rows], [one.output_length for one in finished]),
    ):
        drawn = np.array(ours, float)
        assert sum(drawn) == pytest.approx(sum(theirs), rel=0.001)
        assert (
            np.histogram(drawn - 0.5, edges)[0] == np.histogram(np.array(theirs) - 0.5, edges)[0]
        ).all()


def test_at_every_scrape_as_many_are_in_flight_as_were(url: str, busy: list[Served]) -> None:
    header, rows = trace_of(engines(url, "busy"), seed=0)
    begin_s = begin_of(header)
    arrivals_s = np.array([begin_s + row.timestamp / 1000 for row in rows])
    ends_s = np.array([one.end_s for one in busy])
    for time_s in HOUR:
        arrived, left = (arrivals_s <= time_s).sum(), (ends_s <= time_s).sum()
        assert arrived - left == in_flight(busy, time_s)


def test_replayed_it_has_as_many_running_and_waiting_as_were_recorded(
    url: str, busy: list[Served]
) -> None:
    header, rows = trace_of(engines(url, "busy"), seed=0)
    begin_s = begin_of(header)
    plan = [(row.timestamp / 1000, row.input_length or 1, row.output_length or 1) for row in rows]
    replayed = simulated(plan)

    def series(found: list[Served], begin_s: float) -> NDArray[np.float64]:
        times = [time_s - begin_s for time_s in HOUR]
        running = [sum(one.scheduled_s <= t < one.end_s for one in found) for t in times]
        waiting = [sum(one.arrival_s <= t < one.scheduled_s for one in found) for t in times]
        return np.array([running, waiting], float)

    recorded, ours = series(busy, 0.0), series(replayed, begin_s)
    assert recorded[0].max() == CAP  # the cap did bind
    assert recorded[1].max() > 50
    off_running, off_waiting = np.abs(ours - recorded).mean(axis=1)
    assert off_running <= 1.5
    assert off_waiting <= 0.05 * recorded[1].max()


def test_a_restart_is_not_taken_for_lost_requests(url: str) -> None:
    rows = rows_of(url, "restart")
    # 98 are done at the last scrape, at 975 s; the server is back at 1990 s and 161 more arrive.
    assert len(rows) == 98 + 161
    stamps = [row.timestamp / 1000 for row in rows]
    assert max(after - before for before, after in pairwise(stamps)) > 900


def test_a_gap_is_refused_with_the_longest_whole_part(url: str) -> None:
    (engine,) = engines(url, "gap")
    with pytest.raises(InputError, match="no scrapes of a:8000 for 1020 s from 1770000990") as gap:
        history.check_whole(engine, place=url)
    assert gap.value.hint == "Take a part without gaps: --from 1770002010 --to 1770003600"


def test_engines_of_one_model_are_its_replicas(url: str) -> None:
    header, rows = trace_of(engines(url, "two"), seed=0)
    assert header.replicas == 2
    assert Counter(row.replica for row in rows) == {0: 360, 1: 360}


def test_a_server_that_took_the_place_of_another_is_the_same_replica(url: str) -> None:
    header, rows = trace_of(engines(url, "moved"), seed=0)
    assert header.replicas == 1
    assert {row.replica for row in rows} == {None}


def test_names_with_an_underscore_are_read_too(url: str) -> None:
    assert len(rows_of(url, "underscore")) == 29


def test_a_seed_gives_one_trace_and_another_seed_another(url: str) -> None:
    assert rows_of(url, "busy", 3) == rows_of(url, "busy", 3)
    assert rows_of(url, "busy", 3) != rows_of(url, "busy", 4)


def test_the_written_trace_says_that_it_is_synthetic(url: str, tmp_path: Path) -> None:
    path = tmp_path / "synthetic.jsonl"
    capture_run.prometheus(asked(url, "busy", path, seed=5))
    loaded = trace.load(path)
    assert loaded.header.source == "prometheus"
    assert loaded.header.model == "m"
    assert loaded.header.notes[0] == "synthetic: drawn from Prometheus history, seed 5"
    assert {"aborts", "ends", "hash_ids"} <= set(loaded.header.missing)
    assert loaded.header.time_resolution_ms == 15_000


@pytest.mark.parametrize(
    ("job", "says", "cure"),
    [
        ("nothing", "no vllm:num_requests_running in that time", "Check --from, --to"),
        ("models", "2 models: m, n", "--selector 'model_name=\"m\"'"),
        ("relabelled", "the engine has no vllm:request_prompt_tokens_bucket", "relabelling"),
        ("idle", "no request was in flight or finished in that time", "busier time"),
        ('x"} or {', "Prometheus says: ", "label matchers"),
    ],
)
def test_a_history_that_cannot_be_used_is_explained(
    url: str, tmp_path: Path, job: str, says: str, cure: str
) -> None:
    with pytest.raises(TunerError) as refused:
        capture_run.prometheus(asked(url, job, tmp_path / "out.jsonl"))
    assert says in str(refused.value)
    assert cure in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_no_prometheus_is_named(tmp_path: Path) -> None:
    with served(application(None)) as other, pytest.raises(InputError, match="not a Prometheus"):
        capture_run.prometheus(asked(other, "busy", tmp_path / "out"))


def test_an_address_where_nothing_listens_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="nobody listens there"):
        capture_run.prometheus(asked(address, "busy", tmp_path / "out"))


def test_a_login_in_the_address_is_sent_and_never_repeated(tmp_path: Path) -> None:
    assert prometheus_api.without_login("https://eve:p%40ss@host:9/x") == (
        "https://host:9/x",
        "Basic ZXZlOnBAc3M=",
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://eve:secret@127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="nobody listens there") as refused:
        capture_run.prometheus(asked(address, "busy", tmp_path / "out"))
    assert "secret" not in str(refused.value)


@pytest.mark.attack
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_password_goes_to_no_other_server(tmp_path: Path, status: int, scheme: str) -> None:
    heard: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)

        do_POST = do_GET  # noqa: N815 - as http.server has it

    class Moved(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_response(status)
            self.send_header("Location", f"{scheme}://127.0.0.1:{other.server_port}/leak")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Other) as other,
        ThreadingHTTPServer(("127.0.0.1", 0), Moved) as moved,
    ):
        for one in (other, moved):
            Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://eve:secret@127.0.0.1:{moved.server_port}"
        with pytest.raises(InputError, match="redirects to another server"):
            capture_run.prometheus(asked(address, "busy", tmp_path / "out"))
        for one in (other, moved):
            one.shutdown()
    assert heard == ["Basic ZXZlOnNlY3JldA=="]


@contextmanager
def answering(answer: Callable[[int], bytes]) -> Iterator[prometheus_api.PrometheusQuery]:
    """A Prometheus that answers by the seconds that it is asked for; ask it for two hours."""

    class Lying(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            content = answer(int(form.rpartition("%5B")[2].partition("s")[0]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):  # it has heard enough
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Lying) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield prometheus_api.PrometheusQuery(url, EPOCH_S, EPOCH_S + 7200)
        server.shutdown()


def of_seconds(asked_s: int) -> bytes:
    """A sample for each second, of which every query gets those of the last hour."""
    values = ",".join(f'[{EPOCH_S + second},"1"]' for second in range(asked_s))
    name = '{"__name__":"vllm:num_requests_running"}'
    result = f'[{{"metric":{name},"values":[{values}]}}]'
    return f'{{"status":"success","data":{{"result":{result}}}}}'.encode()


def test_an_hour_that_is_too_much_at_once_is_asked_for_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus_api, "MAX_ANSWER_BYTES", len(of_seconds(1000)))
    asked_s = list[int]()

    def answer(seconds: int) -> bytes:
        asked_s.append(seconds)
        return of_seconds(seconds)

    with answering(answer) as place:
        (found,) = prometheus_api.samples(place, ["num_requests_running"]).values()
    assert asked_s == [3600, 1800, *[900] * 8]
    assert [len(values) for values in found.values()] == [900]


@pytest.mark.attack
def test_a_prometheus_that_never_stops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_api, "MAX_ANSWER_BYTES", 100)
    with answering(of_seconds) as place, pytest.raises(InputError, match="answers too much"):
        prometheus_api.samples(place, ["num_requests_running"])


@pytest.mark.attack
def test_all_answers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_api, "MOST_SAMPLES", 5000)
    with answering(of_seconds) as place, pytest.raises(InputError, match="more than 5,000 samples"):
        prometheus_api.samples(place, ["num_requests_running"])


@pytest.mark.attack
def test_the_labels_of_all_answers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of answers of 385 kB each."""
    numbers = count(100_000)

    def of_labels(asked_s: int) -> bytes:
        series = ",".join(
            f'{{"metric":{{"__name__":"vllm:num_requests_running","a":"{number}"}},"values":[]}}'
            for number in (next(numbers) for _ in range(asked_s))
        )
        return f'{{"status":"success","data":{{"result":[{series}]}}}}'.encode()

    monkeypatch.setattr(prometheus_api, "MOST_LABEL_BYTES", 400_000)
    with answering(of_labels) as place:
        with pytest.raises(InputError, match="more than 400,000 bytes of labels in that time"):
            prometheus_api.samples(place, ["num_requests_running"])
        assert next(numbers) == 100_000 + 2 * 3600


@pytest.mark.attack
def test_the_bytes_of_all_answers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * len(of_seconds(3600))
    with answering(of_seconds) as place:
        monkeypatch.setattr(prometheus_api, "MOST_BYTES", most)
        prometheus_api.samples(place, ["num_requests_running"])
        monkeypatch.setattr(prometheus_api, "MOST_BYTES", most - 1)
        with pytest.raises(InputError, match=f"answers more than {most - 1:,} bytes in all"):
            prometheus_api.samples(place, ["num_requests_running"])


@pytest.mark.attack
def test_all_questions_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, takes_s, given_s = 0.0, 1790.0, list[float]()
    ask = http_client.ask

    def slow(asked: HttpRequest, *, timeout_s: float) -> HttpResponse:
        nonlocal now_s
        now_s += takes_s
        given_s.append(timeout_s)
        return ask(asked, timeout_s=20)

    monkeypatch.setattr(prometheus_api, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(http_client, "ask", slow)
    with answering(of_seconds) as place:
        prometheus_api.samples(place, ["num_requests_running"])
        assert given_s == [60.0, 10.0]
        takes_s = 1800.0
        with pytest.raises(InputError, match="not all answers within 1,800 s"):
            prometheus_api.samples(place, ["num_requests_running"])
    assert given_s == [60.0, 10.0, 60.0]


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cr3t@[::1",
        "user:s3cr3t@127.0.0.1:9090",
        "http://user:s3cr3t@ex\u2100mple",
        "http://h/?token=s3cr3t",
        "http://h/#s3cr3t",
        "http://h:s3cr3t",
        "ftp://user:s3cr3t@h",
        "http://user:s3cr3t@",
        "//user:s3cr3t@h",
        "s3cr3t@h",
    ],
)
def test_no_part_of_an_address_that_may_be_a_secret_is_said(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        prometheus_api.without_login(url)
    assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"


def test_times_and_addresses_are_checked_before_anything_is_asked(tmp_path: Path) -> None:
    for url, begin, end, says in (
        ("http://x", "1h", "2h", "--from 1h is not before --to 2h"),
        ("http://x", "soon", "now", "cannot read 'soon'"),
        ("prometheus:9090", "1h", "now", "neither http:// nor https://"),
        ("http://[::1", "1h", "now", "no address"),
        ("http://x", "0001-01-01", "now", "--from 0001-01-01: no time that can have been recorded"),
        ("http://x", "9999-12-31", "now", "no time that can have been recorded"),
        ("http://x", "1h", "1700000000000", "--to 1700000000000: no time that can have been"),
        ("http://x", "900000h", "now", "no time that can have been recorded"),
    ):
        with pytest.raises(UsageError, match=says):
            capture_run.prometheus(
                PrometheusOptions(url=url, output=tmp_path / "out", from_=begin, to=end)
            )


def test_the_command_captures_and_reports(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from tuner.cli import main; main()"),
            *("capture", "prometheus", "--url", url),
            *("--from", "2026-02-02T02:40:00Z", "--to", "2026-02-02T03:40:00Z"),
            *("--selector", 'job="two"', "-o", "two.jsonl"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "two.jsonl: 720 requests over 0.9998 h" in done.stdout


def scraped_by_hand(**changes: object) -> history.Samples:
    """Return two scrapes, 10 s apart: one request of 3 + 5 tokens finished, one is in flight."""
    samples: dict[str, dict[history.Labels, dict[float, float]]] = {
        history.RUNNING: {(): {0.0: 1.0, 10.0: 1.0}},
        history.WAITING: {(): {0.0: 0.0, 10.0: 0.0}},
        history.SUCCESS: {(("finished_reason", "stop"),): {0.0: 4.0, 10.0: 5.0}},
    }
    for name, length in ((history.INPUT_LENGTH, 3.0), (history.OUTPUT_LENGTH, 5.0)):
        samples[f"{name}_sum"] = {(): {0.0: 40.0, 10.0: 40.0 + length}}
        samples[f"{name}_bucket"] = {
            (("le", "10.0"),): {0.0: 4.0, 10.0: 5.0},
            (("le", "+Inf"),): {0.0: 4.0, 10.0: 5.0},
        }
    samples.update(changes)  # type: ignore[arg-type]
    return samples


def test_one_request_between_two_scrapes_has_its_own_lengths() -> None:
    (engine,) = history.engines(scraped_by_hand(), place="here")
    _, rows = trace_of([engine], seed=0)
    assert [(row.input_length, row.output_length, row.finish_reason) for row in rows] == [
        (3, 5, "stop"),
        (3, 5, "stop"),  # the one in flight at the end: like the others
    ]


@pytest.mark.attack
def test_a_model_that_is_named_to_be_pasted_is_one_word_for_a_shell() -> None:
    evil = "m'; touch 0id) \""
    running: dict[history.Labels, dict[float, float]] = {
        (("model_name", name),): {0.0: 1.0, 10.0: 1.0} for name in (evil, "n")
    }
    with pytest.raises(InputError) as refused:
        history.engines({history.RUNNING: running}, place="here")
    pasted = refused.value.hint.partition(": ")[2]
    assert shlex.split(pasted) == ["--selector", f"model_name={json.dumps(evil)}"]


def test_an_empty_scrape_in_between_loses_nothing() -> None:
    samples = scraped_by_hand()
    missing = {
        name: {labels: {**values, 5.0: 4.0} for labels, values in series.items()}
        if name == history.RUNNING
        else series
        for name, series in samples.items()
    }
    (engine,) = history.engines(missing, place="here")
    assert engine.times_s.tolist() == [0.0, 10.0]


def test_what_cannot_be_true_is_refused() -> None:
    for changes, says in (
        ({history.SUCCESS: {(): {0.0: 0.0, 10.0: 1e12}}}, "1,000,000,000,000 requests"),
        ({history.RUNNING: {(): {0.0: -1.0, 10.0: 1.0}}}, "below zero"),
        ({f"{history.INPUT_LENGTH}_bucket": {(("le", "x"),): {0.0: 0.0, 10.0: 1.0}}}, "are x"),
        ({f"{history.INPUT_LENGTH}_bucket": {(("le", "9"),): {0.0: 0.0, 10.0: 1.0}}}, "are 9"),
        ({history.WAITING: {(): {3.0: 0.0}}}, "fewer than two scrapes"),
    ):
        with pytest.raises(InputError, match=says):
            trace_of(history.engines(scraped_by_hand(**changes), place="here"), seed=0)


NUMBERS = st.one_of(
    st.integers(0, 9).map(float), st.floats(allow_nan=False, allow_infinity=False, width=32)
).filter(lambda value: not 1e5 < value <= MAX_REQUESTS)
"""Without those that are just about allowed: millions of requests take half a minute to make up."""


@settings(max_examples=20)
@given(data=st.data())
def test_no_history_is_worse_than_refused(data: st.DataObject) -> None:
    samples = {
        name: {
            labels: {
                time_s: data.draw(NUMBERS) if data.draw(st.integers(0, 3)) == 0 else value
                for time_s, value in values.items()
            }
            for labels, values in series.items()
        }
        for name, series in scraped_by_hand().items()
    }
    try:
        _, rows = trace_of(history.engines(samples, place="here"), seed=0)
    except TunerError:
        return
    assert all(row.timestamp >= 0 and (row.input_length or 0) >= 1 for row in rows)
