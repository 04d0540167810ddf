"""``tuner apply --live``: change the limits of a server that is running."""

from tuner.commands.apply import live_view as view
from tuner.commands.apply.live_plan import LONGEST_REASON, ControlledServer, plan
from tuner.commands.apply.options import ApplyOptions
from tuner.engines.server import control_client
from tuner.errors import UsageError


def run(options: ApplyOptions) -> None:
    """Change the limits and print what was changed. Raises UsageError, InputError, ProfileError,
    UndecidedError, GateError or EngineError; no server is then changed."""
    _check_usage(options)
    named = [*options.socket] if options.rollback is None else [options.rollback, *options.socket]
    sockets = list(dict.fromkeys(rank for one in named for rank in control_client.ranks(one)))
    servers = [ControlledServer(socket, control_client.state(socket)) for socket in sockets]
    changes, warnings = plan(servers, options)
    if not changes:
        view.show_states([(one.socket, one.state) for one in servers], as_json=options.json)
        return
    if options.dry_run:
        planned = [
            view.would(one.socket, one.state, change)
            for one, change in zip(servers, changes, strict=True)
        ]
        view.show(planned, warnings, dry_run=True, as_json=options.json)
        return
    answers = control_client.change_all(list(zip(sockets, changes, strict=True)))
    done = [
        view.Outcome(
            socket=socket,
            before=answer.before or answer.state.limits,
            state=answer.state,
            changed=answer.changed,
        )
        for socket, answer in zip(sockets, answers, strict=True)
        if answer.state is not None
    ]
    view.show(done, warnings, dry_run=False, as_json=options.json)
    if options.rollback is None and not options.json:
        view.show_undo(done)


def _check_usage(options: ApplyOptions) -> None:
    asked = {
        "PROFILE": options.profile,
        "--at": options.at,
        "--clear-schedule": options.clear_schedule,
        "--rollback": options.rollback,
    }
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", hint="Use one at a time.")
    if not options.socket and options.rollback is None:
        raise UsageError(
            "which server? --live changes one through its control socket",
            hint="Give the path that the server has in TUNER_LIVE_SOCKET: --socket PATH",
        )
    if (options.zone is None) == bool(options.at):
        raise UsageError(
            "--at and --zone go together", hint="--at 07:00=day.yaml … --zone Europe/Berlin"
        )
    needs = {
        "--url": options.url,
        "--token-budget": options.token_budget,
        "--force": options.force,
    }
    alone = [name for name, value in needs.items() if value]
    if alone and not options.profile and not options.at:
        raise UsageError(f"{alone[0]} is for a profile", hint="Name one, or leave it out.")
    if options.dry_run and not given:
        raise UsageError(
            "--dry-run is for a change",
            hint="Name a profile, --at, --clear-schedule or --rollback.",
        )
    if len(options.reason) > LONGEST_REASON:
        raise UsageError(
            f"--reason is longer than {LONGEST_REASON} characters", hint="Say it shorter."
        )
