"""A trace out of Prometheus alone: as many requests, as long, and as many at a time."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.outside.table import BAD_INPUT, OK, Done, run
from tests.support.scraped import (
    BUCKETS,
    Served,
    exposition,
    in_flight,
    open_metrics,
    prometheus,
    write_blocks,
)
from tuner.capture import prometheus as history
from tuner.errors import InputError, TunerError
from tuner.trace import trace
from tuner.trace.trace import Trace

EPOCH_S = 1_770_000_000.0
SCRAPE_S = 15.0
HOUR = [SCRAPE_S * place for place in range(241)]


@pytest.fixture(scope="module")
def busy() -> list[Served]:
    """An hour whose rate rises from 1 to 3 requests/s and falls again; some wait."""
    rng = random.Random(7)
    result, now_s = list[Served](), 0.0
    while now_s < 3600:
        now_s += rng.expovariate(3.0 if 1200 < now_s < 2400 else 1.0)
        prompt, output = rng.choice([12, 40, 170, 600]), max(1, round(rng.expovariate(1 / 90)))
        begin_s = now_s + max(0.0, rng.uniform(-5, 5))
        result.append(Served(now_s, begin_s, begin_s + output / 40, prompt, output))
    return result


@pytest.fixture(scope="module")
def url(busy: list[Served], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that remembers one hour of several servers, told apart by ``job``."""
    few = [Served(float(at), at + 1.0, at + 5.0, 20, 10) for at in range(0, 3600, 10)]
    late = [replace(each, reason="stop") for each in few[:180]] + few[180:]
    quiet = [time_s for time_s in HOUR if not 1000 < time_s < 2000]
    samples = [
        *exposition(busy, HOUR, job="busy", model_name="m"),
        *exposition(few, quiet, job="gap", model_name="m", instance="a:8000"),
        *exposition([each for each in few if each.end_s < 990], HOUR[:66], job="restart"),
        *exposition(few, HOUR[67:], since_s=990.0, job="restart"),
        *exposition(few, HOUR, job="two", model_name="m", instance="a"),
        *exposition(few, HOUR, job="two", model_name="m", instance="b"),
        *exposition(few, HOUR[:20], job="models", model_name="m"),
        *exposition(few, HOUR[:20], job="models", model_name="n"),
        *exposition([], HOUR[:20], job="idle"),
        *exposition(few, HOUR[:20], job="moved", pod="a"),
        *exposition(few, HOUR[30:50], since_s=HOUR[29], job="moved", pod="b"),
        *(
            (series, value, time_s)
            for series, value, time_s in exposition(late, HOUR, job="late")
            if value or "finished_reason" not in series
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


def import_(folder: Path, url: str, job: str) -> Done:
    times = ("--from", f"{EPOCH_S:.0f}", "--to", f"{EPOCH_S + 3600:.0f}")
    return run(folder, "trace import", url, *times, "--selector", f'job="{job}"', "-o", "out.jsonl")


def read(url: str, job: str = "any") -> Trace:
    return history.read(url, EPOCH_S, EPOCH_S + 3600, f'job="{job}"', seed=0)


def test_as_many_requests_as_long_as_finished_or_were_in_flight(
    url: str, busy: list[Served]
) -> None:
    finished = [each for each in busy if each.end_s <= HOUR[-1]]
    made = read(url, "busy").requests
    assert len(made) == len(finished) + in_flight(busy, HOUR[-1])
    rows = made[: len(finished)]
    edges = np.array([0, *BUCKETS, 10**6])
    for ours, theirs in (
        ([row.input_length for row in rows], [each.input_length for each in finished]),
        ([row.output_length for row in rows], [each.output_length for each in finished]),
    ):
        assert sum(ours) == pytest.approx(sum(theirs), rel=0.001)
        drawn, served = (np.histogram(np.array(each) - 0.5, edges)[0] for each in (ours, theirs))
        assert (drawn == served).all()


def test_at_every_scrape_as_many_are_in_flight_as_were(url: str, busy: list[Served]) -> None:
    made = read(url, "busy")
    begin_s = datetime.fromisoformat(made.header.time_origin or "").timestamp() - EPOCH_S
    arrivals_s = begin_s + np.array([request.arrival_s for request in made.requests])
    ends_s = np.array([each.end_s for each in busy])
    for time_s in HOUR:
        arrived, left = (arrivals_s <= time_s).sum(), (ends_s <= time_s).sum()
        assert arrived - left == in_flight(busy, time_s)


def test_a_restart_is_not_taken_for_lost_requests(url: str) -> None:
    stamps = [request.arrival_s for request in read(url, "restart").requests]
    # 98 are done at the last scrape, at 975 s; the server is back at 990 s and 261 more arrive.
    assert len(stamps) == 98 + 261
    assert max(after - before for before, after in pairwise(stamps)) < 60


def test_a_reason_that_first_counts_late_cuts_no_history(url: str) -> None:
    assert len(read(url, "late").requests) == 360 - 2  # before there is any reason


def test_engines_at_one_time_are_replicas_and_a_follower_is_the_same(
    url: str, tmp_path: Path
) -> None:
    done = import_(tmp_path, url, "two")
    assert done.code == OK, done.stderr
    loaded = trace.load(tmp_path / "out.jsonl")
    assert Counter(request.replica for request in loaded.requests) == {0: 360, 1: 360}
    assert (loaded.header.source, loaded.header.model) == ("prometheus", "m")
    assert loaded.header.notes[0] == "synthetic: drawn from Prometheus history, seed 0"
    assert {"aborts", "ends", "hash_ids"} <= set(loaded.header.missing)
    assert {request.replica for request in read(url, "moved").requests} == {None}


@pytest.mark.parametrize(
    ("job", "message", "cure"),
    [
        ("nothing", "no model: not one model in that time", "Check --from and --to"),
        ("models", "m, n: not one model", "--selector 'model_name="),
        ("relabelled", "the engine lacks a metric of vLLM or a bucket", "relabelling"),
        ("idle", "no request was in flight or finished in that time", "busier time"),
        ('x"} or {', "Prometheus answers: ", "label matchers"),
        ("gap", "no scrapes of a:8000 for 1020 s from 1770000990", "--from 1770002010"),
    ],
)
def test_a_history_that_cannot_be_used_is_explained(
    url: str, tmp_path: Path, job: str, message: str, cure: str
) -> None:
    done = import_(tmp_path, url, job)
    assert done.code == BAD_INPUT
    assert message in done.error
    assert cure in done.error
    assert list(tmp_path.iterdir()) == []


@contextmanager
def replying(content: bytes) -> Iterator[str]:
    """Serve this content as the reply to every query."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):  # it has read enough
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.attack
def test_a_prometheus_that_never_stops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'{"data":{"result":[]},"more":"' + b"x" * 1000 + b'"}'
    monkeypatch.setattr(history, "MOST_BYTES", 2500)
    with (
        replying(content) as url,
        pytest.raises(InputError, match="more than 2,500 bytes"),
    ):
        read(url)


NUMBERS = st.one_of(
    st.integers(0, 9).map(float), st.sampled_from(["NaN", "+Inf", "x", "-1", "1e300", "1e17"])
)
SERIES: list[tuple[str, dict[str, str]]] = [
    (history.RUNNING, {}),
    (history.WAITING, {}),
    (history.FINISHED, {"finished_reason": "stop"}),
    *(
        (f"{length}_{part}", {"le": bound} if bound else {})
        for length in (history.INPUT, history.OUTPUT)
        for part, bound in (("bucket", "10.0"), ("bucket", "+Inf"), ("sum", ""))
    ),
]


@settings(max_examples=25)
@given(data=st.data())
def test_no_history_is_worse_than_refused(data: st.DataObject) -> None:
    result: list[dict[str, Any]] = [
        {
            "metric": {"__name__": f"vllm:{name}", **labels},
            "values": [[EPOCH_S + 15 * scrape, str(data.draw(NUMBERS))] for scrape in range(3)],
        }
        for name, labels in SERIES
        if data.draw(st.integers(0, 20))
    ]
    content = json.dumps({"status": "success", "data": {"result": result}}).encode()
    try:
        with replying(content) as url:
            made = read(url)
    except TunerError:
        return
    assert all(request.arrival_s >= 0 and request.input_length >= 1 for request in made.requests)
