"""``tuner apply``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import Json


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ApplyOptions:
    """Write a serving profile into a deployment's file, with a backup.

    Only the engine arguments of the profile are touched, and only where the file shows that it
    starts vLLM with the profile's model; comments, order and everything else stay.
    """

    profile: Annotated[
        Path | None, typer.Argument(help="Serving profile, as tuner sweep wrote it.")
    ] = None
    file: Annotated[
        Path | None, typer.Argument(help="File to edit in place; default: serve.yaml.")
    ] = None
    to: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of FILE; default: found out. One of vllm-config, compose, kubernetes, "
            "kustomize, helm-values, ray-serve, yaml, systemd, quadlet, supervisor, env, script; "
            "or of a file that watches the servers: prometheus-rules, "
            "prometheus-rule-crd, grafana-dashboard.",
        ),
    ] = None
    container: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which container, service, model or variable of FILE, where several may be meant.",
        ),
    ] = None
    at: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="PATH",
            help="Where vLLM's arguments are in the values of a chart: models[0].args.",
        ),
    ] = ()
    model_is: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The profile's model, where FILE does not say it in these words; on record.",
        ),
    ] = None
    selector: Annotated[
        str | None,
        typer.Option(
            metavar="MATCHERS",
            help="Which servers such a file watches, in PromQL; default: those of the model.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the result there; FILE stays as it is."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the change as a diff; write nothing.")
    ] = False
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 6 if FILE would change; write nothing.")
    ] = False
    pin: Annotated[
        bool,
        typer.Option("--pin", help="Write every argument, also those that vLLM takes by itself."),
    ] = False
    rollback: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Restore FILE as it was before the last apply.",
        ),
    ] = None
    live_knob: Annotated[
        bool,
        typer.Option(
            "--live-knob",
            help="Set max_num_active_seqs, and build the engine for the largest cap measured.",
        ),
    ] = False
    admission_limits: Annotated[
        bool,
        typer.Option(
            "--admission-limits",
            help="Also set max_num_active_seqs, max_num_queued_reqs and max_num_queued_tokens, "
            "from the cap and the SLO's TTFT.",
        ),
    ] = False
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Apply what was measured elsewhere or is undecided, on record; lose later edits. "
            "With --container NAME, take its word for vLLM's.",
        ),
    ] = False
    json: Json = False
