"""The options of all commands but ``trace``; ``options.toml`` describes each."""

from pathlib import Path
from typing import Literal

from tuner.commands.shared.options import Options
from tuner.traffic.constants import TOLERANCE

FOREVER = "forever"


class SweepOptions(Options):
    """Find the right max_num_seqs for a trace; write a serving profile.

    One engine walks the caps 1, 2, 4, ... live; a fresh one confirms the choice. Everything
    measured is kept in the run directory.

    Example: tuner sweep --trace prod.jsonl --slo ttft=2s,tpot=50ms
    """

    trace: Path
    output: Path = Path("profile.yaml")
    window: str = "all"
    step: str = "60s"
    replicas: int = 1
    router: Literal["least", "rr", "random", "session"] = "least"
    closed_sessions: bool = False
    model: str | None = None
    base: Path | None = None
    overrides: tuple[str, ...] = ()
    world: Path | None = None
    ray: str | None = None
    ceiling: int = 32
    slo: str | None = None
    require: tuple[str, ...] = ()
    headroom: str = "1.25x"
    budget: str = "15m"
    run_dir: Path | None = None
    dry_run: bool = False
    metrics_port: int | None = None
    json: bool = False


class RefineOptions(Options):
    """Search other engine arguments around a profile.

    max_num_seqs and the token budget change live; other arguments take engines of their own. What
    is proven to be better is kept, else the profile's choice stays.

    Example: tuner refine profile.yaml --trace prod.jsonl
    """

    profile: Path
    trace: Path
    output: Path = Path("refined.yaml")
    search: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    world: Path | None = None
    trust: bool = False
    force: bool = False
    storage: str | None = None
    budget: str = "20m"
    run_dir: Path | None = None
    json: bool = False


class CompareOptions(Options):
    """Serve a trace in six ways, side by side.

    From one worker behind a queue to a tuned engine: each is started for real and replays the same
    requests, in blocks of random order.

    Example: tuner compare --trace prod.jsonl --profile profile.yaml
    """

    trace: Path
    profile: Path
    approaches: str | None = None
    loads: str | None = None
    world: Path | None = None
    base: Path | None = None
    overrides: tuple[str, ...] = ()
    budget: str = "1h"
    run_dir: Path | None = None
    json: bool = False


class DoctorOptions(Options):
    """Check whether this machine and its vLLM can be measured on.

    PASS, FAIL with its cure, or SKIP with its reason. Exits with 6 when one fails.

    Example: tuner doctor
    """

    json: bool = False


class ShowOptions(Options):
    """Show a profile or a run, or what differs from a profile.

    Example: tuner show profile.yaml -o page.html
    """

    source: Path
    target: str | None = None
    output: Path | None = None
    slo: str | None = None
    require: tuple[str, ...] = ()
    prices: str | None = None
    flags: bool = False
    details: bool = False
    json: bool = False


class PlanOptions(Options):
    """Predict how many replicas another load needs; run nothing.

    Of two profiles: which max_num_seqs serves both kinds of traffic, and what each loses by it.

    Example: tuner plan profile.yaml --load 3x
    """

    profile: Path
    second: Path | None = None
    load: str = "1x"
    replicas: int | None = None
    price: float | None = None
    require: tuple[str, ...] = ()
    json: bool = False


class VerifyOptions(Options):
    """Check whether an engine or a server keeps a profile's promise.

    The trace is replayed on a fresh engine with the profile's arguments or, with --url, on a
    running server. Exits with 6 when a promise is broken.

    Example: tuner verify profile.yaml --trace prod.jsonl
    """

    profile: Path
    trace: Path
    step: str = "60s"
    replicas: int | None = None
    require: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    world: Path | None = None
    trust: bool = False
    force: bool = False
    url: str | None = None
    send_load: bool = False
    run_dir: Path | None = None
    json: bool = False


class ApplyOptions(Options):
    """Write a profile into a deployment file, with a backup.

    Only the engine arguments of the profile are touched, and only where the file shows that it
    starts vLLM with the profile's model; comments, order and everything else stay.

    Example: tuner apply profile.yaml serve.yaml --dry-run
    """

    profile: Path | None = None
    file: Path | None = None
    to: str | None = None
    container: str | None = None
    model_is: str | None = None
    selector: str | None = None
    dry_run: bool = False
    check: bool = False
    pin: bool = False
    rollback: Path | None = None
    admission_limits: bool = False
    force: bool = False
    json: bool = False


class LiveOptions(Options, kw_only=True):
    """Change a running server's max_num_seqs without a restart.

    Without a profile, show it.

    Example: tuner live profile.yaml --socket /var/lib/vllm/tuner.sock
    """

    profile: Path | None = None
    socket: tuple[Path, ...]
    reset: bool = False
    force: bool = False
    json: bool = False


class WatchOptions(Options):
    """Check whether a live server still fits its profile.

    Prints still valid, drifting, re-tune now or not enough evidence, and why. Exits with 6 for
    re-tune now, with 5 for not enough evidence, with 4 when the server is gone; else with 0.

    Example: tuner watch profile.yaml --url http://localhost:8000 --for 2h
    """

    profile: Path
    url: str
    for_: str = "30m"
    window: str = "60s"
    fail_on: Literal["re-tune", "drifting"] = "re-tune"
    metrics_port: int | None = None
    json: bool = False


class ResumeOptions(Options):
    """Continue an interrupted run with the options that it had.

    Example: tuner resume runs/prod-20260102-030405
    """

    run_dir: Path
    budget: str | None = None
