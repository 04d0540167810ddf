"""The options of all commands but ``trace``: a frozen dataclass for each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.commands.shared.options import Json, Router, headroom, option
from tuner.traffic.constants import TOLERANCE

FOREVER = "forever"


Profile = Annotated[Path, typer.Argument(help="Serving profile.")]
Trace = Annotated[Path, option("Trace to replay; see `tuner trace import`.")]
Output = Annotated[Path, option("Where the serving profile goes.", "-o", "--output")]
Model = Annotated[
    str | None, option("Model; default: that of --base, else of the trace.", panel="Engine")
]
Base = Annotated[
    Path | None, option("The `vllm serve --config` YAML that production uses.", panel="Engine")
]
Overrides = Annotated[
    tuple[str, ...],
    option("Any vLLM engine argument; repeatable.", "--set", metavar="KEY=VALUE", panel="Engine"),
]
Confirmed = Annotated[
    tuple[str, ...],
    option(
        "Confirm an argument that a profile may not set by itself; repeatable.",
        "--set",
        metavar="KEY=VALUE",
        panel="Engine",
    ),
]
World = Annotated[
    Path | None, option("Simulate this machine instead of starting vLLM.", panel="Engine")
]
Sampling = Annotated[
    str | None,
    option(
        "How production draws tokens; default: the model's generation configuration.",
        metavar="temperature=0.7,top_p=0.9",
        panel="Engine",
    ),
]
Window = Annotated[
    str,
    option("Part of the trace: all, busiest or START+LEN (120s+60s).", panel="Traffic"),
]
Step = Annotated[str, option("How long a step replays: 6s at least.", panel="Traffic")]
Replicas = Annotated[
    int,
    option("Servers that shared the trace; one server's part is sent.", min=1, panel="Traffic"),
]
Headroom = Annotated[
    float,
    option(
        "Load that the choice must hold: 1.25, 1.25x or 125% of the recorded one.",
        parser=headroom,
        metavar="TIMES",
        panel="Decision",
    ),
]
Require = Annotated[
    tuple[str, ...],
    option(
        "What must hold: 'p99 ttft <= 500ms', 'attainment >= 99% at headroom'; repeatable.",
        "--require",
        metavar="BOUND",
        panel="Decision",
    ),
]
Budget = Annotated[str, option("Engine time to spend, starts included.", panel="Run")]
RunDir = Annotated[
    Path | None, option("Where measurements are kept; default: runs/TRACE-TIME.", panel="Run")
]
DryRun = Annotated[bool, option("Print what would run; start nothing.", "--dry-run", panel="Run")]
Details = Annotated[bool, option("Print everything.", "--details", panel="Output")]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepOptions:
    """Find the right max_num_seqs for a trace and write a serving profile.

    One engine walks the caps 1, 2, 4, ... live; a fresh one confirms the choice. Everything
    measured is kept in the run directory.

    Example: tuner sweep --trace prod.jsonl --slo ttft=2s,tpot=50ms
    """

    trace: Trace
    output: Output = Path("profile.yaml")
    window: Window = "all"
    step: Step = "60s"
    replicas: Replicas = 1
    router: Router = "least"
    closed_sessions: Annotated[
        bool,
        option(
            "A session's turn waits for the one before it and its think time.",
            "--closed-sessions",
            panel="Traffic",
        ),
    ] = False
    model: Model = None
    base: Base = None
    overrides: Overrides = ()
    sampling: Sampling = None
    world: World = None
    ray: Annotated[
        str | None,
        option(
            "A sweep and a profile for each kind of node of a Ray cluster.",
            metavar="ADDRESS|local",
            panel="Engine",
        ),
    ] = None
    ceiling: Annotated[int, option("Largest max_num_seqs to try.", min=1, panel="Decision")] = 32
    slo: Annotated[
        str | None,
        option("ttft=500ms,tpot=50ms,e2el=10s; default: derived on the engine.", panel="Decision"),
    ] = None
    require: Require = ()
    headroom: Headroom = 1.25
    budget: Budget = "15m"
    run_dir: RunDir = None
    dry_run: DryRun = False
    metrics_port: Annotated[
        int | None,
        option("Serve what is measured to Prometheus.", min=1, max=65535, panel="Output"),
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RefineOptions:
    """Search engine arguments around a profile, and keep what is proven to be better.

    max_num_seqs and the token budget change live; other arguments take engines of their own. The
    profile's choice stays where no gain is proven.

    Example: tuner refine profile.yaml --trace prod.jsonl
    """

    profile: Profile
    trace: Trace
    output: Output = Path("refined.yaml")
    search: Annotated[
        tuple[str, ...],
        option(
            "Engine argument to search: a,b,c or low:high[:log|:step]; repeatable.",
            metavar="KEY=VALUES",
            panel="Decision",
        ),
    ] = ()
    objective: Annotated[
        str, option("goodput, throughput, e2el, tpot or ttft.", panel="Decision")
    ] = "goodput"
    require: Require = ()
    world: World = None
    overrides: Confirmed = ()
    force: Annotated[
        bool, option("Refine on another machine or vLLM than measured.", "--force", panel="Engine")
    ] = False
    storage: Annotated[
        str | None,
        option("Optuna storage for the trials: a file, or postgresql://…", metavar="URL",
               panel="Run"),
    ] = None  # fmt: skip
    budget: Budget = "20m"
    run_dir: RunDir = None
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareOptions:
    """Serve a trace in six ways, from one worker behind queues to a tuned engine.

    Every way is started for real and replays the same requests, in blocks of random order.

    Example: tuner compare --trace prod.jsonl --profile profile.yaml
    """

    trace: Trace
    profile: Annotated[
        Path | None, option("Serving profile: its max_num_seqs, and all of it as a way to serve.")
    ] = None
    max_num_seqs: Annotated[
        int | None,
        option("The tuned value; default: the profile's.", min=1),
    ] = None
    approaches: Annotated[
        str | None,
        option(
            "worker, two-workers, static, untuned, tuned, server (tuned, behind vllm serve), "
            "profile; default: all but server."
        ),
    ] = None
    loads: Annotated[
        str | None,
        option(
            "light, medium, heavy, very-heavy (2, 8, 16, 25 in flight untuned), uniform (25, every "
            "length the mean), recorded; default: recorded, with a profile 25 too.",
            panel="Traffic",
        ),
    ] = None
    world: World = None
    base: Base = None
    overrides: Overrides = ()
    budget: Budget = "1h"
    run_dir: RunDir = None
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DoctorOptions:
    """Check that this machine and its vLLM can be measured on, a line for each check.

    PASS, FAIL with its cure, or SKIP with its reason. Exits with 6 when one fails.

    Example: tuner doctor
    """

    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ShowOptions:
    """Show a profile or a run, or in what a profile differs from something else.

    Example: tuner show profile.yaml -o page.html
    """

    source: Annotated[
        Path, typer.Argument(metavar="PROFILE|RUN_DIR", help="Serving profile, or folder of a run.")
    ]
    other: Annotated[
        str | None,
        typer.Argument(
            help="Show the differences instead: from another profile, a file to deploy with, or "
            "the server at an address."
        ),
    ] = None
    output: Annotated[
        Path | None,
        option(
            "Write page.html, or a table: curve, replays, requests or iterations as .csv, "
            ".parquet or .json.",
            "-o",
            "--output",
        ),
    ] = None
    slo: Annotated[
        str | None, option("Decide a sweep's run again under this SLO; -o writes the profile.")
    ] = None
    require: Require = ()
    prices: Annotated[
        str | None,
        option(
            "What a million tokens cost with each of two profiles, from prices per GPU and hour.",
            metavar="GPU=PRICE,…",
        ),
    ] = None
    flags: Annotated[
        bool, option("Print only vLLM's flags, to paste behind the model.", "--flags")
    ] = False
    details: Details = False
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanOptions:
    """Predict another load, other caps or a fleet from a profile; nothing is run.

    Of two profiles: which max_num_seqs serves both kinds of traffic, and what each loses by it.

    Example: tuner plan profile.yaml --load 3x
    """

    profile: Profile
    other: Annotated[
        Path | None, typer.Argument(help="Profile of the other traffic that a server gets.")
    ] = None
    load: Annotated[
        str,
        option(
            "All of the traffic: 1.5x or 150% of the profile's, or requests a second as in 35rps.",
            metavar="LOAD",
        ),
    ] = "1x"
    replicas: Annotated[
        int | None,
        option("Servers that share the traffic; default: what it needs.", min=1, max=100_000),
    ] = None
    price: Annotated[
        float | None, option("What a replica costs per hour, in any currency.", min=0.0)
    ] = None
    require: Require = ()
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VerifyOptions:
    """Replay a trace on a fresh engine with a profile's arguments, and gate on its promise.

    With --url a running server gets the load instead, and nothing is started. Exits with 6 when a
    promise is broken.

    Example: tuner verify profile.yaml --trace prod.jsonl --junit verify.xml
    """

    profile: Profile
    trace: Trace
    step: Step = "60s"
    replicas: Annotated[
        int | None,
        option("Servers that shared the trace; default: the profile's.", min=1, panel="Traffic"),
    ] = None
    require: Require = ()
    tolerance: Annotated[
        float,
        option(
            "How much worse than promised is accepted: 0.1 is 10%.", min=0.0, max=10.0,
            panel="Decision",
        ),
    ] = TOLERANCE  # fmt: skip
    world: World = None
    overrides: Confirmed = ()
    force: Annotated[
        bool, option("Verify on another machine or vLLM than measured.", "--force", panel="Engine")
    ] = False
    url: Annotated[
        str | None,
        option("A running server: it gets the trace's load.", panel="Running server"),
    ] = None
    send_load: Annotated[
        int | None,
        option(
            "Requests that --url may get, where it is not on this machine.",
            min=1,
            metavar="N",
            panel="Running server",
        ),
    ] = None
    junit: Annotated[
        Path | None, option("Write the gates as JUnit XML too, for CI.", panel="Output")
    ] = None
    run_dir: Annotated[
        Path | None, option("Keep the replays and the gates there.", panel="Run")
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ApplyOptions:
    """Write a serving profile into a deployment's file, with a backup.

    Only the engine arguments of the profile are touched, and only where the file shows that it
    starts vLLM with the profile's model; comments, order and everything else stay.

    Example: tuner apply profile.yaml serve.yaml --dry-run
    """

    profile: Annotated[Path | None, typer.Argument(help="Serving profile.")] = None
    file: Annotated[
        Path | None, typer.Argument(help="File to edit in place; default: serve.yaml.")
    ] = None
    to: Annotated[
        str | None,
        option(
            "Kind of FILE; default: recognized. One of vllm-config, compose, kubernetes, "
            "kustomize, helm-values, ray-serve, yaml, systemd, quadlet, supervisor, env, script; "
            "or, for what watches the servers, prometheus-rules, prometheus-rule-crd, "
            "grafana-dashboard.",
            metavar="KIND",
        ),
    ] = None
    container: Annotated[
        str | None,
        option(
            "Which container, service or variable of FILE, where several may be meant; or the path "
            "of vLLM's arguments in it: .models[0].args.",
            metavar="NAME",
        ),
    ] = None
    model_is: Annotated[
        str | None,
        option(
            "The profile's model, where FILE does not say it in these words; on record.",
            metavar="NAME",
        ),
    ] = None
    selector: Annotated[
        str | None,
        option(
            "Servers that alerts or a dashboard watch, in PromQL; default: those of the model.",
            metavar="MATCHERS",
        ),
    ] = None
    output: Annotated[
        Path | None, option("Write the result there; FILE stays as it is.", "-o", "--output")
    ] = None
    dry_run: Annotated[bool, option("Print the change as a diff; write nothing.", "--dry-run")] = (
        False
    )
    check: Annotated[
        bool, option("Exit with 6 if FILE would change; write nothing.", "--check")
    ] = False
    pin: Annotated[
        bool, option("Write every argument, also those that vLLM takes by itself.", "--pin")
    ] = False
    rollback: Annotated[
        Path | None, option("Restore FILE as it was before the last apply.", metavar="FILE")
    ] = None
    live_knob: Annotated[
        bool,
        option(
            "Set max_num_active_seqs, and build the engine for the largest cap measured.",
            "--live-knob",
        ),
    ] = False
    admission_limits: Annotated[
        bool,
        option(
            "Also set max_num_active_seqs, max_num_queued_reqs and max_num_queued_tokens, from the "
            "cap and the SLO's TTFT.",
            "--admission-limits",
        ),
    ] = False
    force: Annotated[
        bool,
        option(
            "Apply what was measured elsewhere or is undecided, on record; lose later edits. With "
            "--container NAME, edit it as vLLM's.",
            "--force",
        ),
    ] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LiveOptions:
    """Change a running server's max_num_seqs without a restart; without a profile, show it.

    Example: tuner live profile.yaml --socket /var/lib/vllm/tuner.sock
    """

    profile: Annotated[Path | None, typer.Argument(help="Serving profile.")] = None
    socket: Annotated[
        tuple[Path, ...], option("TUNER_LIVE_SOCKET of the server; repeatable.", metavar="PATH")
    ]
    reset: Annotated[bool, option("Set what the server was started with.", "--reset")] = False
    force: Annotated[
        bool, option("Set what was measured elsewhere or is undecided, on record.", "--force")
    ] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WatchOptions:
    """Compare a live server with a profile's promise, and today's traffic with the profile's.

    Prints still valid, drifting, re-tune now or not enough evidence, and why. Exits with 6 for
    re-tune now, with 5 for not enough evidence, with 4 when the server is gone; else with 0.

    Example: tuner watch profile.yaml --url http://localhost:8000 --for 2h
    """

    profile: Profile
    url: Annotated[str, option("The live server.")]
    for_: Annotated[str, option("How long to watch: 30m, 2h, or forever.", "--for")] = "30m"
    window: Annotated[str, option("Length of a window.")] = "60s"
    fail_on: Annotated[
        Literal["re-tune", "drifting"], option("The mildest verdict that exits with 6.")
    ] = "re-tune"
    run_dir: Annotated[
        Path | None, option("Append every window to windows.jsonl there.", panel="Output")
    ] = None
    metrics_port: Annotated[
        int | None,
        option("Serve the verdict to Prometheus.", min=1, max=65535, panel="Output"),
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ResumeOptions:
    """Continue an interrupted run with the options that it had.

    Example: tuner resume runs/prod-20260102-030405
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of the run.")]
    budget: Annotated[str | None, option("Engine time to spend in all; default: as before.")] = None
