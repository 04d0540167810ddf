"""``tuner apply``: write a serving profile into what the user deploys with."""

from pathlib import Path
from typing import Annotated

import typer


def apply(  # noqa: PLR0913 - one parameter an option
    *,
    profile: Annotated[
        Path | None, typer.Argument(help="Serving profile, as tuner sweep wrote it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Argument(help="File to edit in place; default: serve.yaml.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of FILE; default: found out. One of vllm-config, compose, kubernetes, "
            "kustomize, kserve, helm-production-stack, helm-llm-d, systemd, env; or of a file that "
            "watches the servers: prometheus-rules, prometheus-rule-crd, grafana-dashboard.",
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which container, service, model or variable of FILE, where several may be meant.",
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            metavar="MATCHERS",
            help="Which servers such a file watches, in PromQL; default: those of the model.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the result there; FILE stays as it is."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the change as a diff; write nothing.")
    ] = False,
    exec_: Annotated[
        bool, typer.Option("--exec", help="Then become `vllm serve --config FILE`.")
    ] = False,
    rollback: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Restore FILE as it was before the last apply."),
    ] = None,
    live_knob: Annotated[
        bool,
        typer.Option(
            "--live-knob",
            help="Set max_num_active_seqs, and build the engine for the largest cap measured.",
        ),
    ] = False,
    admission_limits: Annotated[
        bool,
        typer.Option(
            "--admission-limits",
            help="Also set max_num_queued_tokens and max_num_queued_reqs, from the SLO's TTFT.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Apply what was measured elsewhere or is undecided, on record; lose later edits.",
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a serving profile into a deployment's file, with a backup, or start vLLM with it.

    Only the engine arguments of the profile are touched; comments, order and everything else stay.
    """
    from tuner.commands.apply_options import ApplyOptions  # noqa: PLC0415 - keeps --help light
    from tuner.commands.apply_run import run  # noqa: PLC0415

    run(
        ApplyOptions(
            profile=profile,
            file=file,
            to=to,
            container=container,
            output=output,
            dry_run=dry_run,
            exec=exec_,
            rollback=rollback,
            live_knob=live_knob,
            admission_limits=admission_limits,
            force=force,
            json=json_,
            selector=selector,
        )
    )
