"""A known traffic as a real Prometheus remembers it."""

import shutil
import socket
import subprocess
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pytest

from tests.support.places import ROOT

FETCHED = ROOT / ".venv" / "tools"

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
"""vLLM's own, for a model of 2048 tokens."""


def _find(name: str) -> str | None:
    return shutil.which(name, path=str(FETCHED)) or shutil.which(name)


def binary(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip the test where it is not."""
    result = _find(name)
    if result is None:
        pytest.skip(f"no {name}: scripts/tools.sh fetches it")
    return result


@dataclass(frozen=True, slots=True)
class Served:
    """What a server did for one request; seconds on any clock."""

    arrival_s: float
    scheduled_s: float
    end_s: float
    input_length: int
    output_length: int
    reason: str = "length"


def exposition(
    served: Sequence[Served], times_s: Iterable[float], *, since_s: float = 0.0, **labels: str
) -> Iterator[tuple[str, float, float]]:
    """Yield (series, value, time) of every scrape, of a server that has run from ``since_s`` on."""

    def named(name: str, **more: str) -> str:
        pairs = ",".join(f'{key}="{value}"' for key, value in (labels | more).items())
        return f"vllm:{name}{{{pairs}}}"

    ours = sorted(
        (each for each in served if each.arrival_s >= since_s), key=lambda item: item.end_s
    )
    ends, arrivals, begins = (
        sorted(map(attrgetter(name), ours)) for name in ("end_s", "arrival_s", "scheduled_s")
    )
    for time_s in times_s:
        left, came, begun = (bisect_right(each, time_s) for each in (ends, arrivals, begins))
        done = ours[:left]
        values = {
            named("num_requests_running"): begun - left,
            named("num_requests_waiting"): came - begun,
        }
        for reason in ("stop", "length", "abort"):
            name = named("request_success_total", finished_reason=reason)
            values[name] = sum(each.reason == reason for each in done)
        for metric, lengths in (
            ("prompt", sorted(each.input_length for each in done)),
            ("generation", sorted(each.output_length for each in done)),
        ):
            name = f"request_{metric}_tokens"
            for bound in (*BUCKETS, float("inf")):
                le = "+Inf" if bound == float("inf") else f"{bound:.1f}"
                values[named(f"{name}_bucket", le=le)] = bisect_right(lengths, bound)
            values[named(f"{name}_sum")] = sum(lengths)
            values[named(f"{name}_count")] = len(lengths)
        for series, value in values.items():
            yield series, float(value), time_s


def open_metrics(samples: Iterable[tuple[str, float, float]], *, epoch_s: float) -> str:
    """Return what ``promtool tsdb create-blocks-from openmetrics`` reads."""
    lines: dict[str, list[str]] = {}
    for series, value, time_s in samples:
        lines.setdefault(series, []).append(f"{series} {value:g} {epoch_s + time_s:.3f}")
    return "\n".join([*(line for result in lines.values() for line in result), "# EOF\n"])


def write_blocks(text: str, folder: Path) -> None:
    """Make Prometheus's own files out of it."""
    source = folder / "history.om"
    source.write_text(text)
    subprocess.run(
        [
            *(binary("promtool"), "tsdb", "create-blocks-from", "openmetrics"),
            *(str(source), str(folder / "data")),
        ],
        check=True,
        capture_output=True,
    )


@contextmanager
def prometheus(folder: Path, config: str = "") -> Iterator[str]:
    """Run a Prometheus over the blocks in ``folder``, with this configuration."""
    (folder / "prometheus.yml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            binary("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        words: list[str] = []
        for line in process.stderr:
            words.append(line)
            if "Server is ready" in line:
                break
        else:
            pytest.fail("".join(words))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()


def in_flight(served: Sequence[Served], time_s: float) -> int:
    return sum(each.arrival_s <= time_s < each.end_s for each in served)
