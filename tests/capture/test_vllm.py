"""What is recorded of a real server: by the middleware, and by Prometheus."""

import contextlib
import importlib
import inspect
import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.places import ROOT
from tests.support.scraped import can_scrape, prometheus
from tests.support.vllm_server import (
    Gauges,
    Planned,
    RealServer,
    hang_up,
    now_s,
    post,
    send,
    vllm_serve,
)
from tuner.capture import prometheus as history
from tuner.capture.join import join
from tuner.trace import trace
from tuner.trace.trace import Trace, TraceRequest

MIDDLEWARE = ("--middleware", "tuner.capture.TraceRecorder")
PLAN_S = 8.0
SHARED = list(range(100, 140))
"""A beginning of 40 tokens, two and a half blocks, that several prompts have."""

CHAT = [{"role": "user", "content": "botu fodo diko dele boki " * 8}]

SCRAPE = """
scrape_configs:
  - job_name: vllm
    scrape_interval: 1s
    static_configs: [{{targets: ["{target}"]}}]
"""

Note = Callable[[str, object], None]

KINDS = (
    *("whole", "stream", "n", "chat", "chat_stream", "batch_1", "batch_2"),
    *("left_stream", "left_whole", "too_long"),
)


def bursts(length_s: float) -> list[Planned]:
    """Two requests a second of about 40 tokens, and half a second of twelve a second every four.

    No two prompts are equally long: that is how their rows are known again.
    """
    rng = random.Random(3)
    plan: list[Planned] = []
    at_s = 0.0
    while at_s < length_s:
        prompt = [rng.randrange(100, 400) for _ in range(10 + len(plan))]
        plan.append(Planned(at_s, prompt, rng.randrange(25, 56), stream=rng.random() < 0.5))
        at_s += rng.expovariate(12.0 if at_s % 4 < 0.5 else 2.0)
    return plan


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a server left behind of a known traffic: the plan, then one request of every kind."""

    path: Path
    trace: Trace
    plan: list[Planned]
    gauges: Gauges
    scraped: Path | None

    def kind(self, name: str) -> TraceRequest:
        assert len(self.trace.requests) == len(self.plan) + len(KINDS)
        return self.trace.requests[len(self.plan) + KINDS.index(name)]

    @property
    def planned(self) -> list[TraceRequest]:
        """The rows of the plan, in its order."""
        return sorted(self.trace.requests[: len(self.plan)], key=lambda one: one.input_length)

    @property
    def origin_s(self) -> float:
        """When the trace begins, in seconds since 1970."""
        return datetime.fromisoformat(self.trace.header.time_origin or "").timestamp()


def ask_every_kind(url: str) -> None:
    """Send one request of each of KINDS, one after the other, and some that are no traffic."""
    assert post(url, prompt=SHARED)[0] == 200
    assert post(url, prompt=[*SHARED, 1, 2, 3], stream=True, max_tokens=9)[0] == 200
    assert post(url, prompt=SHARED, n=3, temperature=1.0, max_tokens=6)[0] == 200
    for stream in (False, True):
        assert post(url, "/v1/chat/completions", messages=CHAT, stream=stream)[0] == 200
    assert post(url, prompt=[SHARED, [7, 8]], max_tokens=4)[0] == 200
    for stream in (True, False):
        hang_up(url, prompt=SHARED, max_tokens=1900, stream=stream)
    assert post(url, prompt=SHARED, max_tokens=5000)[0] == 400
    assert post(url, prompt=SHARED, model="unknown")[0] == 404
    assert post(url, "/v1/nothing")[0] == 404


def scraped_total(url: str, begin_s: float, metric: str) -> float | None:
    """Return how much of a metric Prometheus has scraped last; None before there is any."""
    engines = history.fetch(history.Source(url, begin_s, now_s())).values()
    series = [rows for engine in engines for rows in engine.get(metric, {}).values()]
    return sum(float(rows[rows[:, 0].argmax(), 1]) for rows in series) if series else None


def wait_for(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    while not condition():
        tick.wait(0.1)


def since(path: Path, rows: int, copy: Path) -> Path:
    """Copy a recording without its first so many rows."""
    header, *lines = path.read_bytes().splitlines(keepends=True)
    copy.write_bytes(b"".join([header, *lines[rows:]]))
    return copy


MARKED = 99
"""The prompt's length of a request behind which every row of earlier tests has been written."""


def last_length(server: RealServer) -> object:
    if not server.rows():
        return None
    last = server.recorded().read_bytes().splitlines()[-1]
    return json.loads(last).get("input_length")


@pytest.fixture(scope="module")
def recorded(real_server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder, url = tmp_path_factory.mktemp("recorded"), real_server.url
    plan = bursts(PLAN_S)
    assert post(url, prompt=[7] * MARKED, max_tokens=1)[0] == 200
    wait_for(lambda: last_length(real_server) == MARKED)
    scraped = folder / "scraped.jsonl" if can_scrape() else None
    before = real_server.rows()
    with contextlib.ExitStack() as also:
        begin_s = now_s()
        scraper, finished = "", 0.0
        if scraped is not None:
            config = SCRAPE.format(target=url.removeprefix("http://"))
            scraper = also.enter_context(prometheus(folder, config))
            wait_for(lambda: scraped_total(scraper, begin_s, history.RUNNING) is not None)
            finished = scraped_total(scraper, begin_s, history.SUCCESS) or 0.0
        gauges = Gauges(url)
        with gauges.watched():
            send(url, plan)
        if scraped is not None:
            due = finished + len(plan)
            wait_for(lambda: (scraped_total(scraper, begin_s, history.SUCCESS) or 0.0) >= due)
            source = history.Source(scraper, begin_s, now_s(), 'job="vllm"')
            trace.write(history.read(source), scraped)
        ask_every_kind(url)
    wait_for(lambda: real_server.rows() - before == len(plan) + len(KINDS))
    path = since(real_server.recorded(), before, folder / "trace.jsonl")
    return Recorded(path, trace.load(path), plan, gauges, scraped)


@pytest.mark.vllm
@pytest.mark.serve
def test_every_request_is_recorded_with_its_lengths(recorded: Recorded) -> None:
    assert [
        (found.input_length, found.output_length, found.max_tokens, found.stream)
        for found in recorded.planned
    ] == [
        (len(asked.prompt), asked.max_tokens, asked.max_tokens, asked.stream)
        for asked in recorded.plan
    ]
    assert all(found.status == "ok" for found in recorded.planned)
    header = recorded.trace.header
    assert (header.source, header.missing) == ("vllm-middleware", ())
    assert recorded.trace.warnings == ()


@pytest.mark.vllm
@pytest.mark.serve
def test_arrivals_are_when_the_requests_were_sent(recorded: Recorded) -> None:
    first = recorded.planned[0].arrival_s
    late = [  # those that leave together may arrive in any order
        found.arrival_s - first - asked.at_s
        for found, asked in zip(recorded.planned, recorded.plan, strict=True)
    ]
    assert np.median(np.abs(late)) < 0.05


@pytest.mark.vllm
@pytest.mark.serve
def test_every_kind_of_request_leaves_its_row(recorded: Recorded) -> None:
    whole, stream, several = (recorded.kind(name) for name in ("whole", "stream", "n"))
    assert (whole.input_length, whole.output_length, whole.finish_reason) == (40, 5, "length")
    assert (stream.input_length, stream.output_length, stream.stream) == (43, 9, True)
    assert (several.n, several.output_lengths) == (3, (6, 6, 6))
    assert [recorded.kind(f"batch_{place}").input_length for place in (1, 2)] == [40, 2]
    assert [recorded.kind(f"batch_{place}").output_length for place in (1, 2)] == [4, 4]
    for name in ("chat", "chat_stream"):
        assert recorded.kind(name).output_length == 5
        assert recorded.kind(name).input_length == recorded.kind("chat").input_length > 16
    assert recorded.kind("too_long").status == "rejected"
    assert recorded.kind("too_long").finish_reason == "http_400"


@pytest.mark.vllm
@pytest.mark.serve
@pytest.mark.parametrize("name", ["left_stream", "left_whole"])
def test_a_client_that_leaves_is_an_abort_with_the_tokens_so_far(
    recorded: Recorded, name: str
) -> None:
    left = recorded.kind(name)
    assert (left.status, left.input_length, left.max_tokens) == ("aborted", 40, 1900)
    assert 0 < left.output_length < 1900
    assert left.e2e_s is not None
    assert left.queue_s is not None


@pytest.mark.vllm
@pytest.mark.serve
def test_prompts_that_begin_alike_share_their_first_ids(recorded: Recorded) -> None:
    whole, stream = recorded.kind("whole").hash_ids, recorded.kind("stream").hash_ids
    assert len(whole) == 2
    assert whole == stream
    assert recorded.kind("chat").hash_ids == recorded.kind("chat_stream").hash_ids != ()
    others = [found.hash_ids[0] for found in recorded.planned if found.hash_ids]
    assert whole[0] not in others
    assert len(set(others)) == len(others)


@pytest.mark.vllm
@pytest.mark.serve
def test_no_text_and_no_token_ids_are_written(recorded: Recorded) -> None:
    text = recorded.path.read_text()
    assert "fodo" not in text
    assert ", ".join(map(str, SHARED[:3])) not in text
    assert ",".join(map(str, SHARED[:3])) not in text


def off_by(recorded: Recorded, intervals: Sequence[tuple[float, float]], begin_s: float) -> float:
    """Return the mean difference in requests in flight from what the server itself said.

    ``begin_s``: what the intervals count from, in seconds since 1970.
    """
    in_flight = [
        sum(begin <= at_s - begin_s < end for begin, end in intervals)
        for at_s in recorded.gauges.times_s
    ]
    return float(np.abs(np.array(in_flight) - recorded.gauges.in_flight).mean())


@pytest.mark.vllm
@pytest.mark.serve
def test_its_intervals_are_the_concurrency_that_the_server_reported(
    recorded: Recorded, record_property: Note
) -> None:
    intervals = [(one.arrival_s, one.arrival_s + (one.e2e_s or 0)) for one in recorded.planned]
    off = off_by(recorded, intervals, recorded.origin_s)
    reported = np.array(recorded.gauges.in_flight)
    record_property("mean_in_flight", reported.mean())
    record_property("mean_absolute_error", off)
    always_the_mean = np.abs(reported - reported.mean()).mean()
    assert off <= min(1.0, always_the_mean / 2)


@pytest.mark.vllm
@pytest.mark.serve
def test_a_real_prometheus_gives_as_many_requests_and_tokens(recorded: Recorded) -> None:
    if recorded.scraped is None:
        pytest.skip("no prometheus: scripts/tools.sh fetches it")
    synthetic = trace.load(recorded.scraped).requests
    assert len(synthetic) == len(recorded.plan)
    for name in ("input_length", "output_length"):
        ours = sum(getattr(one, name) for one in synthetic)
        assert ours == pytest.approx(sum(getattr(one, name) for one in recorded.planned), rel=0.01)


@pytest.mark.vllm
@pytest.mark.long
def test_several_api_servers_write_a_file_each_which_join(tmp_path: Path) -> None:
    key = {"TUNER_TRACE_OUT": "trace", "TUNER_TRACE_KEY": "0f" * 32}
    with vllm_serve(tmp_path, *MIDDLEWARE, "--api-server-count", "2", **key) as url:
        send(url, [Planned(0.05 * place, SHARED, 5) for place in range(40)])
        while sum(path.read_bytes().count(b"\n") - 1 for path in files(tmp_path)) < 40:
            threading.Event().wait(0.1)
    assert len(files(tmp_path)) == 2
    joined = join(files(tmp_path))
    assert len(joined.requests) == 40
    assert len({one.hash_ids for one in joined.requests}) == 1


def files(folder: Path) -> list[Path]:
    return sorted((folder / "trace").glob("*.jsonl"))


def test_the_middleware_of_the_example_is_one_that_vllm_takes() -> None:
    named = yaml.safe_load((ROOT / "examples" / "serve.yaml").read_text())["middleware"]
    module, _, name = named.rpartition(".")
    assert inspect.isclass(getattr(importlib.import_module(module), name))
