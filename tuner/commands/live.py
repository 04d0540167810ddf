"""``tuner live``: show and set the cap of servers that run, over their control sockets."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tuner.commands.options import LiveOptions
from tuner.errors import GateError, TunerError, UsageError
from tuner.live import control
from tuner.live.control import LONGEST_REASON, Limits, Request, State
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.rollout import difference, fit
from tuner.system.printable import printable
from tuner.views.text import print_json

Servers = Mapping[Path, State]
"""Socket → the state that its server reports."""


def run(options: LiveOptions) -> None:
    """Show the cap of every server, or set it. Raises TunerError."""
    if options.profile is not None and options.reset:
        raise UsageError("PROFILE and --reset exclude each other", hint="Use one at a time.")
    sockets = [rank for each in options.socket for rank in control.ranks(each)]
    servers = {path: control.ask(path, Request("state"))[0] for path in sockets}
    request, warnings = Request("state"), list[str]()
    if options.profile is not None:
        request, warnings = _of_profile(options.profile, servers, options)
    elif options.reset:
        request = Request("reset", reason="as the server was started")
    replies = _asked(servers, request)
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
    if options.json:
        documents = [
            {"socket": str(path), "before": before, **msgspec.structs.asdict(state)}
            for path, (state, before) in replies.items()
        ]
        print_json(msgspec.to_builtins({"servers": documents, "warnings": warnings}))
        return
    for path, (state, before) in replies.items():
        cap, was = state.limits.max_num_seqs, before.max_num_seqs
        sys.stdout.write(
            f"{printable(str(path))}: max_num_seqs {cap} of {state.built.max_num_seqs}"
            f"{f', was {was}' * (was != cap)}; {state.running} running, {state.waiting} waiting\n"
        )


def _asked(servers: Servers, request: Request) -> dict[Path, tuple[State, Limits]]:
    """Ask every server, one after the other. An error says which were set before."""
    replies: dict[Path, tuple[State, Limits]] = {}
    for path in servers:
        try:
            replies[path] = control.ask(path, request)
        except TunerError as problem:
            if not replies:
                raise
            done = ", ".join(map(str, replies))
            hint = f"{problem.hint} Then run it again."
            raise type(problem)(f"{problem}; already set: {done}", hint=hint) from None
    return replies


def _of_profile(path: Path, servers: Servers, options: LiveOptions) -> tuple[Request, list[str]]:
    """Compare a profile with every server; return what to ask for, and warnings. Raises what speaks
    against it."""
    profile = profiles.load(path)
    undecided = fit.undecided(profile, source=str(path), force=options.force)
    if undecided is not None:
        raise undecided
    cap, mismatches, warnings = profile.decision.max_num_seqs, dict[str, fit.Mismatch](), []
    for socket, state in servers.items():
        if cap > (most := state.built.max_num_seqs):
            raise GateError(
                f"{path}: max_num_seqs {cap} is more than the {most} that the server at {socket} "
                "was built for",
                hint=f"Start the server with --max-num-seqs {cap} or more: its buffers, graphs "
                "and KV cache are made for that when it starts.",
            )
        here = _deployment(profile, socket, state)
        mismatches |= {each.words: each for each in fit.mismatches(profile, here)}
        warnings += [
            f"{each.name} was {each.profile} when measured; {socket} has {each.other}"
            for each in difference.of_deployment(profile, here)
            if each.section == "engine" and each.name not in {"max_num_seqs", *fit.NUMERICS}
        ]
    differing = list(mismatches.values())
    refusal = fit.refusal(profile, differing)
    if refusal is not None and not options.force:
        raise refusal
    reason = "; ".join([f"profile {profile.digest}", *mismatches])[:LONGEST_REASON]
    request = Request("set", cap, reason)
    return request, [*fit.cautions(profile, differing), *warnings]


def _deployment(profile: ServingProfile, socket: Path, state: State) -> fit.Deployment:
    """Return what a server reports, as what a profile is compared with."""
    about = state.about
    host = fit.Host(f"{socket} has", vllm=about.vllm)
    host = host if about.device is None else fit.Host.of(about.vllm, about.device)
    arguments = {
        name: value
        for name, value in about.arguments.items()
        if name != "quantization" or name in profile.engine  # a checkpoint may bring its own
    }
    return fit.Deployment(arguments=arguments, source=str(socket), hosts=[host], is_new=True)
