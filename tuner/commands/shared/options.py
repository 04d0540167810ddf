"""Every option of the command line, and how a dataclass of them becomes a command of typer."""

import dataclasses
import gc
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, ParameterInfo

from tuner.errors import UsageError


def option(help_: str, *names: str, **more: Any) -> Any:  # noqa: ANN401 - typer's
    info = typer.Option(help=help_, **more)
    info.param_decls = names
    return info


def argument(help_: str, **more: Any) -> Any:  # noqa: ANN401 - typer's
    return typer.Argument(help=help_, **more)


def times(text: str | float) -> float:
    """Return a load as a multiple of the trace's. Raises ValueError.

    >>> times("1.5"), times("1.5x"), times("150%"), times("150 %")
    (1.5, 1.5, 1.5, 1.5)
    """
    written = str(text).strip().lower()
    if written.endswith("%"):
        return float(written.removesuffix("%")) / 100
    return float(written.removesuffix("x"))


def headroom(text: str | float) -> float:
    """Return a validation's load, from 1 to 10 times the recorded. Raises typer.BadParameter."""
    with suppress(ValueError):
        if 1.0 <= (value := times(text)) <= 10.0:
            return value
    raise typer.BadParameter(f"{text!r} is not from 1 to 10: give 1.25, 1.25x or 125%")


_KINDS = (
    "Kind of FILE; default: recognized. One of vllm-config, compose, kubernetes, kustomize, "
    "helm-values, ray-serve, yaml, systemd, quadlet, supervisor, env, script; or, for what watches "
    "the servers, prometheus-rules, prometheus-rule-crd, grafana-dashboard."
)
_CONFIRM = option(
    "Confirm what a profile may not set by itself; repeatable.", "--set", metavar="KEY=VALUE"
)

OPTIONS: dict[str, dict[str, Any]] = {
    "": {
        "profile": argument("Serving profile."),
        "trace": option("Trace to replay; see `tuner trace import`."),
        "output": option("Where the serving profile goes.", "-o", "--output"),
        "show.output": option(
            "page.html, or curve, replays, requests or iterations as .csv, .parquet or .json.",
            "-o", "--output",
        ),
        "compare.profile": option("Serving profile: what is tuned, all of its arguments."),
        "compare.max_num_seqs": option("The tuned value; default: the profile's.", min=1),
        "approaches": option(
            "worker, two-workers, static, untuned, tuned, server; default: all but server."
        ),
        "source": argument("Serving profile, or folder of a run.", metavar="PROFILE|RUN_DIR"),
        "target": argument("Show what differs in a profile, a deployment file or a server."),
        "show.slo": option("Decide a sweep's run again under this SLO; -o writes the profile."),
        "prices": option("What a million tokens cost, by GPU hour.", metavar="GPU=PRICE,…"),
        "flags": option("Print only vLLM's flags, to paste behind the model."),
        "plan.other": argument("Profile of the other traffic that a server gets."),
        "load": option("1.5x or 150% of the profile's traffic, or requests a second as in 35rps."),
        "plan.replicas": option("Servers that share it; default: what it takes.", min=1, max=10**5),
        "price": option("What a replica costs per hour, in any currency.", min=0.0),
        "file": argument("File to edit in place; default: serve.yaml."),
        "to": option(_KINDS, metavar="KIND"),
        "container": option(
            "The container, service or variable, where several may be meant."
        ),
        "model_is": option("The profile's model, where FILE calls it something else."),
        "selector": option("PromQL matchers of servers to watch; default: those of the model."),
        "apply.dry_run": option("Print the change as a diff; write nothing."),
        "check": option("Exit with 6 if FILE would change; write nothing."),
        "pin": option("Write every argument, also those that vLLM takes by itself."),
        "rollback": option("Restore FILE as it was before the last apply.", metavar="FILE"),
        "admission_limits": option("Also limit active and queued requests and queued tokens."),
        "apply.force": option(
            "Apply what was measured elsewhere or is undecided; lose later edits."
        ),
        "socket": option("TUNER_LIVE_SOCKET of the server; repeatable.", metavar="PATH"),
        "reset": option("Set what the server was started with."),
        "live.force": option("Set what was measured elsewhere or is undecided."),
        "watch.url": option("The live server."),
        "for_": option("How long to watch: 30m, 2h, or forever.", "--for"),
        "watch.window": option("Length of a window."),
        "fail_on": option("The mildest verdict that exits with 6."),
        "trace.file": argument("Trace in any format that tuner knows; - reads standard input."),
        "sources": argument("File, - for stdin, files of a recording, or a Prometheus's address."),
        "trace.output": option("Where the trace goes.", "-o", "--output"),
        "format_name": option("Format of FILE; default: recognized.", "--format"),
        "time_unit": option("Unit of times that are numbers, where the file leaves two."),
        "columns": option(
            "Columns of a table: timestamp=ts,input_length=prompt_tok,output_length=gen; also "
            "end, duration_ms, ttft_ms, status, model, …; #3 is the third column."
        ),
        "trace.window": option("Part: busiest, busiest+10m, or START+LEN (120s+60s)."),
        "from_": option("Begin of the history: how long ago, or a date; default: 1h.", "--from"),
        "trace.to": option("End of the history, as --from; default: now."),
        "trace.selector": option("Servers in a Prometheus: label matchers, as 'job=\"vllm\"'."),
        "spread_ticks": option("Spread arrivals evenly within the ticks of a coarse clock."),
        "allow_text": option("Read a file that holds text, and leave the text out."),
        "lengths": option("Trace whose lengths to take, where SOURCE is a concurrency schedule."),
        "trace.force": option("Overwrite the output."),
        "replica": option("Keep what one recorded server got: its number, or busiest."),
        "resume.run_dir": argument("Folder of the run.", metavar="RUN_DIR"),
        "resume.budget": option("Engine time to spend in all; default: as before."),
    },
    "Traffic": {
        "window": option("Part of the trace: all, busiest or START+LEN (120s+60s)."),
        "step": option("How long a step replays: 6s at least."),
        "replicas": option("Servers that shared the trace; one server's part is sent.", min=1),
        "verify.replicas": option("Servers that shared the trace; default: the profile's.", min=1),
        "router": option("How requests reach replicas."),
        "closed_sessions": option("A session's turn waits for the one before it and think time."),
        "loads": option("recorded, light (2 in flight), very-heavy (25), uniform (25, all alike)."),
    },
    "Engine": {
        "model": option("Model; default: that of --base, else of the trace."),
        "base": option("The `vllm serve --config` YAML that production uses."),
        "overrides": option("Any vLLM engine argument; repeatable.", "--set", metavar="KEY=VALUE"),
        "refine.overrides": _CONFIRM,
        "verify.overrides": _CONFIRM,
        "world": option("Simulate this machine instead of starting vLLM."),
        "ray": option("Sweep on each kind of node of a Ray cluster: its address, or local."),
        "force": option("Run where machine or vLLM differ from the profile's."),
    },
    "Running server": {
        "url": option("A running vLLM server: it gets the trace's load."),
        "send_load": option("Requests that --url may get, where it is not on this machine.", min=1),
    },
    "Decision": {
        "ceiling": option("Largest max_num_seqs to try.", min=1),
        "slo": option("ttft=500ms,tpot=50ms,e2el=10s; default: derived on the engine."),
        "require": option(
            "'p99 ttft <= 500ms', 'attainment >= 99% at headroom', …; repeatable.", metavar="BOUND"
        ),
        "headroom": option("Load that the choice must hold: 1.25x or 125%.", parser=headroom),
        "search": option("Engine argument to search: a,b,c; repeatable.", metavar="KEY=VALUES"),
        "tolerance": option("How much worse than promised is fine: 0.1 is 10%.", min=0.0, max=10.0),
    },
    "Run": {
        "budget": option("Engine time to spend, starts included."),
        "storage": option("Optuna storage for the trials: a file, or postgresql://…"),
        "run_dir": option("Where measurements are kept; default: runs/TRACE-TIME."),
        "dry_run": option("Print what would run; start nothing."),
    },
    "Output": {
        "details": option("Print everything."),
        "metrics_port": option("Serve measurements or verdict to Prometheus.", min=1, max=65535),
        "json": option("Print one JSON document."),
    },
}  # fmt: skip
"""Panel in ``--help`` → option → typer's description. A name before a dot is of that command."""


def parameters_of(options: type[Any]) -> dict[str, tuple[Any, ParameterInfo]]:
    """Return field → type, and its description for typer."""
    command_name = re.findall("[A-Z][a-z]*", options.__name__)[0].lower()
    result: dict[str, tuple[Any, ParameterInfo]] = {}
    for name, kind in get_type_hints(options).items():
        panel, info = next(
            (panel, rows[key])
            for key in (f"{command_name}.{name}", name)
            for panel, rows in OPTIONS.items()
            if key in rows
        )
        info.rich_help_panel = panel or None
        result[name] = kind, info
    return result


def flag_of(name: str, info: ParameterInfo) -> str:
    """Return the long form of an option."""
    written = (each for each in info.param_decls or () if each.startswith("--"))
    return next(written, f"--{name.replace('_', '-')}")


def command(options: type[Any], module: str, function: str = "run") -> Callable[..., None]:
    """Return what typer makes a command of.

    It has a parameter for each field of the dataclass ``options``, whose docstring is its help, and
    calls ``module.function`` with an instance. A field that is a tuple may be given several times.
    The module is imported when the command runs, and the dataclass has no ``repr`` and no ``==``:
    both keep ``--help`` light.
    """
    fields = {field.name: field for field in dataclasses.fields(options)}
    known = parameters_of(options)

    def called(**given: Any) -> None:  # noqa: ANN401 - whatever the fields are
        for name, value in given.items():
            if isinstance(value, str) and not value.strip():
                flag = flag_of(name, known[name][1])
                hint = f"Give {flag} a value (is a variable not set?), or drop it."
                raise UsageError(f"{flag} is empty", hint=hint)
        run = getattr(importlib.import_module(module), function)
        gc.enable()  # which cli.py disables for the imports
        run(filled(options, given))

    parameters = []
    for name, (kind, info) in known.items():
        default, is_several = fields[name].default, get_origin(kind) is tuple
        if is_several:  # which typer knows as a list
            kind = list[get_args(kind)[0]]  # type: ignore[misc]  # noqa: PLW2901
            kind = kind if default is dataclasses.MISSING else kind | None  # noqa: PLW2901
        if kind is bool and not info.param_decls:  # else typer adds --no-…
            info.param_decls = (flag_of(name, info),)
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if default == () else default,
                annotation=Annotated[kind, info],
            )
        )
    paragraphs = inspect.cleandoc(options.__doc__ or "").split("\n\n")
    called.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def filled(options: type[Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an instance
    """Return the options with what typer's parser has for them: several values are a tuple."""
    several = {
        name for name, (kind, _) in parameters_of(options).items() if get_origin(kind) is tuple
    }
    return options(**{k: tuple(v or ()) if k in several else v for k, v in values.items()})


def in_plan(options: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401 - any command's
    """Return the options that every measurement of a run rests on, as the journal holds them."""
    values = {name: getattr(options, name) for name in names}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def as_typed(options: Any) -> list[str]:  # noqa: ANN401 - any command's
    """Return the words that make these options on the command line: those that are no default."""
    known, words = parameters_of(type(options)), list[str]()
    for field in dataclasses.fields(options):
        value, info = getattr(options, field.name), known[field.name][1]
        if value is None or value == field.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(info, ArgumentInfo):
            words += map(str, values)
        else:
            flag = flag_of(field.name, info)
            words += [flag if value is True else f"{flag}={each}" for each in values]
    return words
