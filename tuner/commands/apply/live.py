"""``tuner apply --live``: show and set the limits of servers that run."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tuner.commands.apply.options import ApplyOptions
from tuner.commands.shared.output import print_json
from tuner.engines.server import control_client
from tuner.engines.server.protocol import LONGEST_REASON, Limits, SetLimits, State
from tuner.errors import GateError, UsageError
from tuner.live import server as live_server
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.rollout import difference, fit
from tuner.system.printable import printable


@dataclass(frozen=True, slots=True)
class ControlledServer:
    """A server's socket, and what it says there."""

    socket: Path
    state: State

    @property
    def name(self) -> str:
        return printable(str(self.socket))

    def after(self, change: SetLimits) -> "ControlledServer":
        """Return the server as a change would leave it."""
        tokens = change.max_num_batched_tokens or self.state.limits.max_num_batched_tokens
        limits = Limits(change.max_num_seqs, tokens)
        return ControlledServer(self.socket, msgspec.structs.replace(self.state, limits=limits))

    def document(self) -> dict[str, Any]:
        return {"socket": str(self.socket), **msgspec.to_builtins(self.state)}


def run(options: ApplyOptions) -> None:
    """Show what holds, or set the limits of every server. Raises UsageError, InputError,
    ProfileError, UndecidedError, GateError and EngineError."""
    _check_usage(options)
    named = [*options.socket] if options.rollback is None else [options.rollback, *options.socket]
    sockets = dict.fromkeys(rank for one in named for rank in control_client.ranks(one))
    servers = [ControlledServer(socket, control_client.state(socket)) for socket in sockets]
    warnings: Sequence[str] = ()
    if options.profile is not None:
        changes, warnings = _of_profile(options.profile, servers, options)
    elif options.rollback is not None:
        changes = [_as_started(one) for one in servers]
    else:
        _show_states(servers, as_json=options.json)
        return
    before = [one.state.limits for one in servers]
    if options.dry_run:
        after = [one.after(change) for one, change in zip(servers, changes, strict=True)]
    else:
        answers = control_client.set_all(
            [(one.socket, change) for one, change in zip(servers, changes, strict=True)]
        )
        before = [answer.before or old for answer, old in zip(answers, before, strict=True)]
        after = [
            ControlledServer(one.socket, answer.state or one.state)
            for one, answer in zip(servers, answers, strict=True)
        ]
    _show(after, before, warnings, options)


def _check_usage(options: ApplyOptions) -> None:
    if options.profile is not None and options.rollback is not None:
        raise UsageError("PROFILE and --rollback exclude each other", hint="Use one at a time.")
    if options.at:
        raise UsageError("--at is for a file, not for --live", hint="Leave it out.")
    if not options.socket and options.rollback is None:
        raise UsageError(
            "which server? --live changes one through its control socket",
            hint="Give the path that the server has in TUNER_LIVE_SOCKET: --socket PATH",
        )
    needs = {
        "--url": options.url,
        "--token-budget": options.token_budget,
        "--force": options.force,
    }
    alone = [name for name, value in needs.items() if value]
    if alone and options.profile is None:
        raise UsageError(f"{alone[0]} is for a profile", hint="Name one, or leave it out.")
    if options.dry_run and options.profile is None and options.rollback is None:
        raise UsageError("--dry-run is for a change", hint="Name a profile, or --rollback.")


def _as_started(server: ControlledServer) -> SetLimits:
    built = server.state.built
    reason = "as the server was started"
    return SetLimits(built.max_num_seqs, built.max_num_batched_tokens, reason)


def _of_profile(
    path: Path, servers: Sequence[ControlledServer], options: ApplyOptions
) -> tuple[list[SetLimits], Sequence[str]]:
    """Compare a profile with every server, and return what to set, and warnings. Raises what speaks
    against it."""
    chosen = profile.load(path)
    undecided = fit.undecided(chosen, source=str(path), force=options.force)
    if undecided is not None:
        raise undecided
    mismatching: dict[str, fit.Mismatch] = {}
    notes: list[str] = []
    for server in servers:
        _check_fits(chosen, path, server, options)
        mismatching |= {one.words: one for one in fit.mismatches(chosen, _here(chosen, server))}
        notes += _other_settings(chosen, server, options)
    if options.url is not None:
        there = live_server.ask(options.url)
        here = fit.Deployment(
            told=there.arguments, source=options.url, vllm=there.version or None, is_new=True
        )
        mismatching |= {one.words: one for one in fit.mismatches(chosen, here)}
    others = list(mismatching.values())
    refusal = fit.refusal(chosen, others)
    if refusal is not None and not options.force:
        raise refusal
    reason = "; ".join([f"profile {chosen.digest}", *(one.words for one in others)])
    change = SetLimits(
        max_num_seqs=chosen.decision.max_num_seqs,
        max_num_batched_tokens=_tokens(chosen, options),
        reason=reason[:LONGEST_REASON],
    )
    return [change] * len(servers), (*fit.cautions(chosen, others), *notes)


def _tokens(chosen: ServingProfile, options: ApplyOptions) -> int | None:
    tokens = chosen.engine.get("max_num_batched_tokens")
    return tokens if options.token_budget and isinstance(tokens, int) else None


def _check_fits(
    chosen: ServingProfile, path: Path, server: ControlledServer, options: ApplyOptions
) -> None:
    built = server.state.built
    for name, wanted, most in (
        ("max_num_seqs", chosen.decision.max_num_seqs, built.max_num_seqs),
        ("max_num_batched_tokens", _tokens(chosen, options), built.max_num_batched_tokens),
    ):
        if wanted is not None and wanted > most:
            flag = f"--{name.replace('_', '-')}"
            raise GateError(
                f"{path}: {name} {wanted} is more than the {most} that the server at "
                f"{server.socket} was built for",
                hint=f"Start the server with {flag} {wanted} or more: its buffers, graphs and KV "
                "cache are made for that when it starts.",
            )


def _here(chosen: ServingProfile, server: ControlledServer) -> fit.Deployment:
    """Return what a server says of itself, as what a profile is compared with."""
    about = server.state.about
    stated = {
        name: value
        for name, value in about.arguments.items()
        if name != "quantization" or name in chosen.engine  # a checkpoint may bring its own
    }
    machine = fit.LocalMachine.of(about.vllm, about.device) if about.device is not None else None
    return fit.Deployment(
        told=stated,
        source=str(server.socket),
        vllm=about.vllm if machine is None else None,
        machine=machine,
        is_new=True,
    )


def _other_settings(
    chosen: ServingProfile, server: ControlledServer, options: ApplyOptions
) -> list[str]:
    """Say which of the profile's other arguments the server does not have."""
    state = server.state
    present = {**state.about.arguments, **msgspec.structs.asdict(state.limits)}
    others = difference.of_server(chosen, present, None, source=str(server.socket))
    ours = {"max_num_seqs", "model", *(["max_num_batched_tokens"] if options.token_budget else [])}
    return [
        f"{one.name} was {one.profile} when measured; {server.socket} has {one.other}"
        for one in others
        if one.section == "engine" and one.name not in ours | fit.NUMERICS.keys()
    ]


def _show(
    servers: Sequence[ControlledServer],
    before: Sequence[Limits],
    warnings: Sequence[str],
    options: ApplyOptions,
) -> None:
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
    if options.json:
        documents = [
            one.document()
            | {"changed": one.state.limits != old, "before": msgspec.structs.asdict(old)}
            for one, old in zip(servers, before, strict=True)
        ]
        print_json({"dry_run": options.dry_run, "servers": documents, "warnings": list(warnings)})
        return
    for one, old in zip(servers, before, strict=True):
        new, text = one.state.limits, f"{one.name}: max_num_seqs "
        if new == old:
            sys.stdout.write(f"{text}is {new.max_num_seqs} already\n")
            continue
        text += f"{old.max_num_seqs} -> {new.max_num_seqs}"
        if old.max_num_batched_tokens != new.max_num_batched_tokens:
            tokens = f"{old.max_num_batched_tokens} -> {new.max_num_batched_tokens}"
            text += f", max_num_batched_tokens {tokens}"
        sys.stdout.write(f"{text}{' (dry run)' * options.dry_run}; {_load(one.state)}\n")
        if (above := one.state.running - new.max_num_seqs) > 0:
            sys.stdout.write(f"  {above} of the running finish before another one begins\n")


def _show_states(servers: Sequence[ControlledServer], *, as_json: bool) -> None:
    if as_json:
        print_json({"servers": [one.document() for one in servers]})
        return
    for one in servers:
        limits, built = one.state.limits, one.state.built
        sys.stdout.write(
            f"{one.name}: max_num_seqs {limits.max_num_seqs} of {built.max_num_seqs}, "
            f"max_num_batched_tokens {limits.max_num_batched_tokens} of "
            f"{built.max_num_batched_tokens}; {_load(one.state)}\n"
        )


def _load(state: State) -> str:
    return f"{state.running} running, {state.waiting} waiting"
