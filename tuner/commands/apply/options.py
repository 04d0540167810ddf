"""``tuner apply``: write a serving profile into what the user deploys with."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import Json


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
    canary: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100,
            metavar="PERCENT",
            help="Of an InferenceService's traffic, for the revision with the profile.",
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
        typer.Option(
            metavar="FILE",
            help="Restore FILE as it was before the last apply; with --live, a server's SOCKET.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Change a running server through its control socket, without a restart; without "
            "a profile, show what holds.",
        ),
    ] = False,
    socket: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Its TUNER_LIVE_SOCKET; may be repeated: all change, or none."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Its address: also hold the profile against what it says there."
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HH:MM=PROFILE",
            help="Let a profile's cap hold from this time of day; repeat it for the others.",
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="The time zone of --at, such as Europe/Berlin or UTC."),
    ] = None,
    clear_schedule: Annotated[
        bool, typer.Option("--clear-schedule", help="End the schedule; the cap stays as it is.")
    ] = False,
    token_budget: Annotated[
        bool,
        typer.Option("--token-budget", help="With --live, also set max_num_batched_tokens."),
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="With --live: why, for the server's audit.")
    ] = "",
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
    json_: Json = False,
) -> None:
    """Write a serving profile into a deployment's file, with a backup, or start vLLM with it.

    Only the engine arguments of the profile are touched; comments, order and everything else stay.
    """
    from tuner.commands.apply import live as apply_live  # noqa: PLC0415 - keeps --help light
    from tuner.commands.apply.command_line import ApplyOptions  # noqa: PLC0415
    from tuner.commands.apply.live_plan import LiveOptions  # noqa: PLC0415
    from tuner.commands.apply.run import run  # noqa: PLC0415

    apply_live.refuse(
        live={
            "--socket": socket,
            "--url": url,
            "--at": at,
            "--zone": zone,
            "--clear-schedule": clear_schedule,
            "--token-budget": token_budget,
            "--reason": reason,
        },
        file={
            "FILE": file,
            "--to": to,
            "--container": container,
            "--canary": canary is not None,
            "--selector": selector,
            "--output": output,
            "--exec": exec_,
            "--live-knob": live_knob,
            "--admission-limits": admission_limits,
        },
        is_live=live,
    )
    if live:
        apply_live.run(
            LiveOptions(
                profile=profile,
                sockets=socket or (),
                url=url,
                at=at or (),
                zone=zone,
                clear_schedule=clear_schedule,
                token_budget=token_budget,
                reason=reason,
                rollback=rollback,
                dry_run=dry_run,
                force=force,
                json=json_,
            )
        )
        return
    run(
        ApplyOptions(
            profile=profile,
            file=file,
            to=to,
            container=container,
            canary=canary,
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
