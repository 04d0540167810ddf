"""`tuner watch` on servers that answer over HTTP, on a clock that nobody waits for."""

import json
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_watch import CAP, CAPS, LAWS, RATE, STORED, STORED_S
from tests.support.live_sim import SimulatedServer, exposition, poisson, profile_of, simulated
from tests.support.served_metrics import Page, serving
from tuner.commands.options import WatchOptions
from tuner.commands.watch import run
from tuner.errors import EngineError, InputError, Interrupted, TunerError
from tuner.profile import profile as profiles
from tuner.twin import law

LENGTH_S, WINDOWS = 250.0, 4


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile that keeps fewer laws than ours do."""
    path = tmp_path_factory.mktemp("watch") / "profile.yaml"
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(law, "PRINTED_DRAWS", LAWS)
        profiles.save(profile_of(STORED, STORED_S, cap=CAP, caps=CAPS), path)
    return path


@pytest.fixture(scope="module")
def honest() -> SimulatedServer:
    return simulated(poisson(RATE, LENGTH_S, seed=2), cap=CAP)


Watched = tuple[dict[str, Any], TunerError | None]
Watching = Callable[..., Watched]


@contextmanager
def free_clock(at_wake: Callable[[float], None]) -> Iterator[Callable[[], float]]:
    """Give a clock on which sleeping takes no time; ``at_wake`` gets the time after each sleep."""
    slept, monotonic = [0.0], time.monotonic
    began_s = monotonic()

    def sleep(length_s: float) -> None:
        slept[0] += length_s
        at_wake(now_s())

    def now_s() -> float:
        return monotonic() + slept[0] - began_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        patch.setattr(time, "monotonic", lambda: began_s + now_s())
        yield now_s


@pytest.fixture
def watch(profile: Path, capsys: pytest.CaptureFixture[str]) -> Watching:
    def go(
        page: Page,
        *,
        root: str | None = None,
        port: int | None = None,
        at_wake: Callable[[float], None] = lambda _: None,
    ) -> Watched:
        ended: TunerError | None = None
        with free_clock(at_wake) as now_s, serving(page, now_s, root=root) as url:
            try:
                run(
                    WatchOptions(
                        profile=profile, url=url, for_=f"{LENGTH_S:g}s", json=True,
                        metrics_port=port,
                    )
                )  # fmt: skip
            except TunerError as error:
                ended = error
        printed = capsys.readouterr().out
        return json.loads(printed) if printed else {}, ended

    return go


def page_of(server: SimulatedServer) -> Page:
    return lambda at_s: exposition(server.scrape(at_s))


def test_an_honest_server_is_still_valid_and_prometheus_knows(
    watch: Watching, honest: SimulatedServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pages = list[str]()

    def look(at_s: float) -> None:
        if at_s > 241 and not pages:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                pages.append(answer.read().decode())

    result, ended = watch(page_of(honest), port=port, at_wake=look)
    assert ended is None
    assert (result["verdict"], result["windows"]) == ("still valid", WINDOWS)
    states = {row["measure"]: row["state"] for row in result["measures"]}
    assert states["slowness"] == "within"
    assert result["rightness"] == 1.0
    assert result["restarts"] == 0
    assert 'tuner_watch_verdict{verdict="still valid"} 1.0' in pages[0]
    assert 'tuner_watch_beyond{measure="slowness"} 0.0' in pages[0]
    assert "tuner_watch_choice_rightness 1.0" in pages[0]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (lambda at_s, fine: fine(at_s) if at_s < 100 else None, "does not answer any more"),
        (lambda at_s, fine: fine(min(at_s, 60.0)), "hangs: requests run and no token"),
        (
            lambda at_s, fine: fine(at_s).replace('="m"', '="m"' if at_s < 100 else '="n"'),
            "serves n now, m before",
        ),
    ],
    ids=["dies", "hangs", "another model"],
)
def test_a_server_that_is_no_more_ends_the_watch_with_what_is_known(
    watch: Watching, honest: SimulatedServer, page: Callable[..., str | None], why: str
) -> None:
    result, ended = watch(lambda at_s: page(at_s, page_of(honest)))
    assert isinstance(ended, EngineError)
    assert re.search(why, str(ended))
    assert result["windows"] >= 1
    assert result["requests"] > 200


def test_ctrl_c_prints_what_is_known_so_far(watch: Watching, honest: SimulatedServer) -> None:
    def stop(at_s: float) -> None:
        if at_s > 101:
            raise KeyboardInterrupt

    result, ended = watch(page_of(honest), at_wake=stop)
    assert isinstance(ended, Interrupted)
    assert "so far: not enough evidence" in str(ended)
    assert result["windows"] == 1


def test_several_servers_behind_one_address_are_refused(
    watch: Watching, honest: SimulatedServer
) -> None:
    def page(at_s: float) -> str:
        return exposition(honest.scrape(at_s), started_s=1e9 + 100 * (round(at_s / 2) % 2))

    _, ended = watch(page)
    assert isinstance(ended, InputError)
    assert "servers answer in turn" in str(ended)


def test_a_server_of_another_model_is_refused(watch: Watching, honest: SimulatedServer) -> None:
    result, ended = watch(page_of(honest), root="org/other")
    assert isinstance(ended, InputError)
    assert "serves model org/other and not m (served as m)" in str(ended)
    assert result == {}
