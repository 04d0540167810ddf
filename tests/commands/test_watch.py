"""`tuner watch` on servers that answer over HTTP, on a clock that nobody waits for."""

import json
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_watch import CAP, CAPS, LAWS, RATE, STORED, STORED_S, WORLD
from tests.support.live_sim import (
    SimulatedServer,
    exposition,
    poisson,
    profile_of,
    simulated,
)
from tests.support.served_metrics import FreeClock, Page, page_of, serving
from tuner.commands.options import WatchOptions
from tuner.commands.watch import run
from tuner.errors import (
    EngineError,
    InputError,
    Interrupted,
    TunerError,
)
from tuner.profile import evidence
from tuner.profile import profile as profiles

LENGTH_S = 400.0
FOR, WINDOWS = "250s", 4


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile that keeps fewer laws than ours do."""
    path = tmp_path_factory.mktemp("watch") / "profile.yaml"
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(evidence, "PRINTED_DRAWS", LAWS)
        profiles.save(profile_of(WORLD, STORED, STORED_S, cap=CAP, caps=CAPS), path)
    return path


@pytest.fixture
def of_200_laws(tmp_path: Path) -> Path:
    profiles.save(
        profile_of(WORLD, STORED, STORED_S, cap=CAP, caps=CAPS), tmp_path / "profile.yaml"
    )
    return tmp_path / "profile.yaml"


@pytest.fixture(scope="module")
def honest() -> SimulatedServer:
    return simulated(WORLD, poisson(RATE, LENGTH_S, seed=2), cap=CAP, until_s=LENGTH_S)


@pytest.fixture(scope="module")
def slow() -> SimulatedServer:
    return simulated(
        WORLD, poisson(RATE, LENGTH_S, seed=3), cap=CAP, until_s=LENGTH_S,
        slow_from_s=0.0, slow_by=1.5,
    )  # fmt: skip


def options(profile: Path, url: str, **changes: Any) -> WatchOptions:  # noqa: ANN401
    plain: dict[str, Any] = {
        "profile": profile,
        "url": url,
        "for_": FOR,
        "json": True,
    }
    return WatchOptions(**plain | changes)


Watched = tuple[dict[str, Any], TunerError | None]


@pytest.fixture
def watch(profile: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Watched]:
    def go(page: Page, clock: FreeClock | None = None, **changes: Any) -> Watched:  # noqa: ANN401
        clock = clock or FreeClock()
        ended: TunerError | None = None
        with serving(page, clock) as url:
            try:
                given = changes.pop("profile", profile), changes.pop("url", url)
                run(options(*given, **changes), clock=clock)
            except TunerError as error:
                ended = error
        printed = capsys.readouterr().out
        return json.loads(printed) if printed.startswith("{") else {"text": printed}, ended

    return go


def test_an_honest_server_is_still_valid(
    watch: Callable[..., Watched], honest: SimulatedServer, of_200_laws: Path, tmp_path: Path
) -> None:
    results, ended = watch(page_of(honest), profile=of_200_laws, run_dir=tmp_path / "run")
    assert ended is None
    assert results["verdict"] == "still valid"
    assert results["windows"] == WINDOWS
    assert results["measures"]["slowness"]["state"] == "within"
    assert results["choice"]["rightness"] == 1.0
    assert results["missed_scrapes"] == results["restarts"] == 0
    text = (tmp_path / "run" / "windows.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == ["begin", *["window"] * WINDOWS]
    assert lines[-1]["verdict"] == "still valid"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["reason"] == results["reason"]
    assert result["page"]["next"].startswith("tuner show ")
    assert sum(line["finished"] for line in lines[1:]) <= results["finished"]


def test_a_server_that_dies_ends_the_watch_with_what_is_known(
    watch: Callable[..., Watched], honest: SimulatedServer
) -> None:
    fine = page_of(honest)
    result, ended = watch(lambda at_s: fine(at_s) if at_s < 100 else None)
    assert isinstance(ended, EngineError)
    assert "does not answer any more" in str(ended)
    assert result["windows"] >= 1
    assert result["requests"] > 200


def hanging(server: SimulatedServer, from_s: float) -> Page:
    return lambda at_s: exposition({"0": server.scrape(min(at_s, from_s))})


def test_a_server_that_hangs_ends_the_watch(
    watch: Callable[..., Watched], honest: SimulatedServer
) -> None:
    _, ended = watch(hanging(honest, 60.0))
    assert isinstance(ended, EngineError)
    assert re.search(r"hangs: \d+ requests run and no token came for 120 s", str(ended))


def test_ctrl_c_says_what_is_known_so_far(
    watch: Callable[..., Watched], honest: SimulatedServer
) -> None:
    clock = FreeClock()

    def stop() -> None:
        raise KeyboardInterrupt

    clock.at_wake[101.0] = stop
    result, ended = watch(page_of(honest), clock)
    assert isinstance(ended, Interrupted)
    assert "so far: not enough evidence" in str(ended)
    assert result["windows"] == 1


def test_several_models_are_refused(watch: Callable[..., Watched], honest: SimulatedServer) -> None:
    fine = page_of(honest)

    def page(at_s: float) -> str | None:
        text = fine(at_s)
        assert text is not None
        return text + text.replace('model_name="m"', 'model_name="n"')

    _, ended = watch(page)
    assert isinstance(ended, InputError)
    assert "2 models: m, n" in str(ended)


def test_the_verdict_is_there_for_prometheus_while_it_goes_on(
    watch: Callable[..., Watched], honest: SimulatedServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    clock, words = FreeClock(), list[str]()

    def look() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            words.append(answer.read().decode())

    clock.at_wake[241.0] = look
    watch(page_of(honest), clock, metrics_port=port)
    assert 'tuner_watch_verdict{verdict="still valid"} 1.0' in words[0]
    assert 'tuner_watch_beyond{measure="slowness"} 0.0' in words[0]
    assert 'tuner_watch_measure{bound="high",measure="slowness"} 1.' in words[0]
    assert "tuner_watch_choice_rightness 1.0" in words[0]


def test_a_server_that_serves_another_model_from_then_on_ends_the_watch(
    watch: Callable[..., Watched], honest: SimulatedServer
) -> None:
    def page(at_s: float) -> str:
        text = exposition({"0": honest.scrape(at_s)})
        return text if at_s < 100 else text.replace('model_name="m"', 'model_name="n"')

    result, ended = watch(page)
    assert isinstance(ended, EngineError)
    assert "serves n now, m before" in str(ended)
    assert result["windows"] == 1


def test_several_servers_behind_one_address_are_refused(
    watch: Callable[..., Watched], honest: SimulatedServer, slow: SimulatedServer
) -> None:
    def page(at_s: float) -> str:
        place = round(at_s / 2) % 2
        return exposition({"0": (honest, slow)[place].scrape(at_s)}, started_s=1e9 + 100 * place)

    _, ended = watch(page)
    assert isinstance(ended, InputError)
    assert "several servers answer in turn" in str(ended)
    assert "one replica" in ended.hint


def test_a_server_of_another_model_is_refused(
    watch: Callable[..., Watched], honest: SimulatedServer
) -> None:
    clock = FreeClock()
    with serving(page_of(honest), clock, root="org/other") as other:
        result, ended = watch(page_of(honest), clock, url=other)
    assert isinstance(ended, InputError)
    assert "serves model org/other and not m (served as m)" in str(ended)
    assert result == {"text": ""}
