"""``tuner live``: show and set the limits of servers that run, over their control sockets."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from tuner.commands.options import LiveOptions
from tuner.errors import GateError, UsageError
from tuner.live import control_client
from tuner.live.control import LONGEST_REASON, Limits, SetLimits, State
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.rollout import difference, fit
from tuner.system.printable import printable
from tuner.views.text import print_json


class Server(NamedTuple):
    """A server's socket, and the state that it reports."""

    socket: Path
    state: State

    def document(self) -> dict[str, Any]:
        return {"socket": str(self.socket), **msgspec.to_builtins(self.state)}


def run(options: LiveOptions) -> None:
    """Show the limits of every server, or set them. Raises TunerError."""
    if options.profile is not None and options.reset:
        raise UsageError("PROFILE and --reset exclude each other", hint="Use one at a time.")
    sockets = dict.fromkeys(rank for each in options.socket for rank in control_client.ranks(each))
    servers = [Server(socket, control_client.state(socket)) for socket in sockets]
    warnings: Sequence[str] = ()
    if options.profile is not None:
        changes, warnings = _of_profile(options.profile, servers, options)
    elif options.reset:
        why = "as the server was started"
        changes = [SetLimits(**asdict(server.state.built), reason=why) for server in servers]
    else:
        _show_states(servers, as_json=options.json)
        return
    answers = control_client.set_all(
        [(server.socket, change) for server, change in zip(servers, changes, strict=True)]
    )
    pairs = list(zip(servers, answers, strict=True))
    before = [answer.before or server.state.limits for server, answer in pairs]
    after = [Server(server.socket, answer.state or server.state) for server, answer in pairs]
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
    if options.json:
        documents = [
            server.document() | {"changed": server.state.limits != old, "before": asdict(old)}
            for server, old in zip(after, before, strict=True)
        ]
        print_json({"servers": documents, "warnings": list(warnings)})
        return
    for server, old in zip(after, before, strict=True):
        _show_change(server, old)


def _of_profile(
    path: Path, servers: Sequence[Server], options: LiveOptions
) -> tuple[list[SetLimits], Sequence[str]]:
    """Compare a profile with every server, and return what to set, and warnings. Raises what speaks
    against it."""
    profile = profiles.load(path)
    undecided = fit.undecided(profile, source=str(path), force=options.force)
    if undecided is not None:
        raise undecided
    change = SetLimits(profile.decision.max_num_seqs, None, reason="")
    mismatching: dict[str, fit.Mismatch] = {}
    notes: list[str] = []
    for server in servers:
        _check_built(change, path, server)
        here = _deployment(profile, server)
        mismatching |= {each.words: each for each in fit.mismatches(profile, here)}
        notes += _other_settings(profile, server)
    mismatches = list(mismatching.values())
    refusal = fit.refusal(profile, mismatches)
    if refusal is not None and not options.force:
        raise refusal
    reason = "; ".join([f"profile {profile.digest}", *(each.words for each in mismatches)])
    change = msgspec.structs.replace(change, reason=reason[:LONGEST_REASON])
    return [change] * len(servers), (*fit.cautions(profile, mismatches), *notes)


def _check_built(change: SetLimits, path: Path, server: Server) -> None:
    """Raise GateError for more than a server was built for."""
    wanted, most = change.max_num_seqs, server.state.built.max_num_seqs
    if wanted > most:
        raise GateError(
            f"{path}: max_num_seqs {wanted} is more than the {most} that the server at "
            f"{server.socket} was built for",
            hint=f"Start the server with --max-num-seqs {wanted} or more: its buffers, graphs and "
            "KV cache are made for that when it starts.",
        )


def _deployment(profile: ServingProfile, server: Server) -> fit.Deployment:
    """Return what a server reports, as what a profile is compared with."""
    about = server.state.about
    host = fit.Host(f"{server.socket} has", vllm=about.vllm)
    host = host if about.device is None else fit.Host.of(about.vllm, about.device)
    return fit.Deployment(
        arguments={
            name: value
            for name, value in about.arguments.items()
            if name != "quantization" or name in profile.engine  # a checkpoint may bring its own
        },
        source=str(server.socket),
        hosts=[host],
        is_new=True,
    )


def _other_settings(profile: ServingProfile, server: Server) -> list[str]:
    """Return which of the profile's other arguments the server does not have."""
    state = server.state
    present = {**state.about.arguments, **asdict(state.limits)}
    ours = {"max_num_seqs", "model"}
    return [
        f"{each.name} was {each.profile} when measured; {server.socket} has {each.other}"
        for each in difference.of_server(profile, present, None, source=str(server.socket))
        if each.section == "engine" and each.name not in ours | fit.NUMERICS.keys()
    ]


def _show_change(server: Server, old: Limits) -> None:
    new, line = server.state.limits, f"{printable(str(server.socket))}: max_num_seqs "
    if new == old:
        sys.stdout.write(f"{line}is {new.max_num_seqs} already\n")
        return
    line += f"{old.max_num_seqs} -> {new.max_num_seqs}"
    if old.max_num_batched_tokens != new.max_num_batched_tokens:
        tokens = f"{old.max_num_batched_tokens} -> {new.max_num_batched_tokens}"
        line += f", max_num_batched_tokens {tokens}"
    sys.stdout.write(f"{line}; {_load(server.state)}\n")
    if (above := server.state.running - new.max_num_seqs) > 0:
        sys.stdout.write(f"  {above} of the running finish before another one begins\n")


def _show_states(servers: Sequence[Server], *, as_json: bool) -> None:
    if as_json:
        print_json({"servers": [server.document() for server in servers]})
        return
    for server in servers:
        limits, built = server.state.limits, server.state.built
        sys.stdout.write(
            f"{printable(str(server.socket))}: max_num_seqs {limits.max_num_seqs} of "
            f"{built.max_num_seqs}, max_num_batched_tokens {limits.max_num_batched_tokens} of "
            f"{built.max_num_batched_tokens}; {_load(server.state)}\n"
        )


def _load(state: State) -> str:
    return f"{state.running} running, {state.waiting} waiting"
