"""Joining a cluster or starting one: what is no address, and signals meanwhile."""

import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.profiles import profile
from tuner.commands.refine import ray as ray_command
from tuner.engines.provenance import model_digest
from tuner.errors import UsageError

ray = pytest.importorskip("ray")

from tuner.runs.cluster import session  # noqa: E402 - imports ray
from tuner.runs.cluster.kinds import describe_here, describe_node, grouped  # noqa: E402
from tuner.runs.cluster.site import described  # noqa: E402


@pytest.mark.parametrize(
    "address", ["", "bogus", "host:", ":6379", "host:head", "host:0", "host:65536", "a..b:6379"]
)
def test_what_is_no_address_is_refused_in_our_words(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        session.RaySession(address)
    assert str(caught.value) == f"--ray {address or repr('')}: is not the address of a cluster"
    assert "HOST:PORT" in caught.value.hint


def test_signals_stay_ours_while_ray_starts_and_others_may_set_them() -> None:
    before = signal.SIG_DFL
    signal.signal(signal.SIGTERM, before)  # a cluster that was joined earlier may have left Ray's
    with session._our_signals():
        with pytest.raises(ValueError, match="num_cpus"):
            ray.init("127.0.0.1:1", num_cpus=1)  # its handler is set before that is looked at
        assert signal.getsignal(signal.SIGTERM) is before
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_while_a_cluster_is_started_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        made: list[Path] = []

        def starting(**_how: object) -> None:
            made.extend(Path(place).iterdir())
            signal.alarm(3)  # as Ray does
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(ray, "init", starting)
        with pytest.raises(KeyboardInterrupt):
            session.RaySession(session.LOCAL)
        assert len(made) == 1
        assert list(Path(place).iterdir()) == []
        assert signal.alarm(0) == 0


def test_a_cluster_without_a_token_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = object.__new__(session.RaySession)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (caution,) = joined.cautions()
    assert "asks for no token" in caution
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert joined.cautions() == ()


class OneNode:
    """A session with one node, and what that says of itself."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def ask(self, _function: object, _nodes: object) -> dict[str, object]:
        return {"n": self._answer}


HERE = describe_here()


@pytest.mark.attack
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"device": {}}, "tuner does not run there"),
        (replace(HERE, versions=cast("Any", ["vllm"])), "makes no sense"),
        (replace(HERE, device=cast("Any", "\x1b[2J")), "makes no sense"),
        (replace(HERE, versions={**HERE.versions, "python": "\x1b[2J"}), "python is"),
        (replace(HERE, code="0" * 16), "the modules of tuner differ"),
    ],
)
def test_a_node_that_says_nonsense_of_itself_is_left_out(answer: object, why: str) -> None:
    said, left_out = described(cast("session.RaySession", OneNode(answer)), [])
    assert said == {}
    assert why in left_out["n"]


@pytest.mark.attack
def test_a_node_with_other_files_of_the_model_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which it forgets
    (tmp_path / "config.json").write_text("{}")
    here = describe_node(str(tmp_path))
    other = replace(here, model_digest=f"sha256:{64 * '0'}")
    assert here.model_digest == model_digest(str(tmp_path))
    assert describe_node().model_digest is None
    assert grouped({"a": here, "b": other}) == [["a"], ["b"]]
    measured = profile(
        device=dict(here.device), versions=dict(here.versions), model_digest=here.model_digest
    )
    assert ray_command._refusal(measured, here) is None
    assert ray_command._refusal(measured, replace(here, model_digest=None)) is None
    assert ray_command._refusal(measured, other) == (
        "its files of the model are others than were measured"
    )
