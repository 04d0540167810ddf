"""`tuner live` as a user meets it, against sockets with numbers behind them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.live_servers import Server, serving
from tests.support.profiles import ENGINE, profile
from tuner import cli
from tuner.profile.profile import save

Tuner = Callable[..., tuple[int, str, str]]


def of(max_num_seqs: int, **more: object) -> None:
    """Save a profile as ``cap-16.yaml``."""
    engine = {**ENGINE, "max_num_seqs": max_num_seqs}
    save(profile(engine=engine, **more), Path(f"cap-{max_num_seqs}.yaml"))  # type: ignore[arg-type]


@pytest.fixture
def tuner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tuner:
    """Run the command line in a folder that has cap-16.yaml and cap-8.yaml."""
    monkeypatch.chdir(tmp_path)
    of(16)
    of(8)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tuner", "live", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert isinstance(exited.value.code, int)
        return exited.value.code, captured.out, captured.err

    return run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "t.sock") as served:
        yield served


def refused(done: tuple[int, str, str], exit_code: int) -> str:
    """Return the line that says what is wrong; one more names the cure."""
    code, out, err = done
    message, cure = [line for line in err.splitlines() if not line.startswith("Warning: ")]
    assert (code, out) == (exit_code, "")
    assert cure
    return message.removeprefix("Error: ")


def test_more_than_the_server_was_built_for_is_refused_with_the_cure(
    tuner: Tuner, server: Server
) -> None:
    of(64)
    done = tuner("cap-64.yaml", "--socket", server.path, "--force")
    assert "max_num_seqs 64 is more than the 32" in refused(done, 6)
    assert "Start the server with --max-num-seqs 64 or more" in done[2]
    assert server.cap == 32


@pytest.mark.parametrize(
    ("arguments", "differs"),
    [
        ({"model": "n"}, "model m, SOCKET has n"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype auto, SOCKET has fp8"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 1, SOCKET has 2"),
    ],
)
def test_another_server_than_measured_is_refused_and_forced_on_record(
    tuner: Tuner, tmp_path: Path, arguments: dict[str, object], differs: str
) -> None:
    with serving(tmp_path / "t.sock", arguments=arguments) as server:
        differs = differs.replace("SOCKET", str(server.path))
        done = tuner("cap-16.yaml", "--socket", server.path)
        assert refused(done, 6) == f"the profile was measured elsewhere: {differs}"
        code, _, err = tuner("cap-16.yaml", "--socket", server.path, "--force")
        assert (code, err) == (0, f"Warning: the profile was measured elsewhere: {differs}\n")


def test_other_settings_than_measured_are_named(tuner: Tuner, tmp_path: Path) -> None:
    with serving(tmp_path / "t.sock", arguments={"max_num_batched_tokens": 2048}) as server:
        _, _, err = tuner("cap-16.yaml", "--socket", server.path)
        assert err == (
            f"Warning: max_num_batched_tokens was 8192 when measured; {server.path} has 2048\n"
        )


def test_an_undecided_profile_needs_force(tuner: Tuner, server: Server) -> None:
    of(4, verdict="inconclusive", reason="the intervals overlap")
    assert "the intervals overlap" in refused(tuner("cap-4.yaml", "--socket", server.path), 5)
    assert tuner("cap-4.yaml", "--socket", server.path, "--force")[0] == 0


def test_servers_built_differently_are_each_compared_with_their_own(
    tuner: Tuner, tmp_path: Path
) -> None:
    with serving(tmp_path / "t.sock") as large, serving(tmp_path / "u.sock", built=8) as less:
        both = ("--socket", large.path, "--socket", less.path)
        assert f"the 8 that the server at {less.path}" in refused(tuner("cap-16.yaml", *both), 6)
        code, out, _ = tuner("cap-8.yaml", *both)
        assert (code, large.cap, less.cap) == (0, 8, 8)
        assert f"{less.path}: max_num_seqs 8 of 8\n" in out


def test_the_cap_is_set_shown_and_reset(tuner: Tuner, server: Server) -> None:
    on = ("--socket", server.path)
    begin = f"{server.path}: max_num_seqs"
    assert tuner("cap-16.yaml", *on) == (0, f"{begin} 16 of 32, was 32\n", "")
    assert server.cap == 16
    assert tuner("cap-16.yaml", *on) == tuner(*on) == (0, f"{begin} 16 of 32\n", "")
    assert tuner("--reset", *on) == (0, f"{begin} 32 of 32, was 16\n", "")
    assert server.cap == 32


def test_all_ranks_are_changed(tuner: Tuner, tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with serving(path) as first, serving(path, rank=1) as second, serving(path, rank=2) as third:
        assert tuner("cap-16.yaml", "--socket", path)[0] == 0
        assert [each.cap for each in (first, second, third)] == [16, 16, 16]
