"""``tuner live``: show and set the cap of servers that run, over their control sockets."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tuner.commands.options import LiveOptions
from tuner.errors import GateError, TunerError, UsageError
from tuner.live import control
from tuner.live.control import Request, State
from tuner.profile import profile as profiles
from tuner.rollout import difference, fit
from tuner.system.printable import printable
from tuner.views.text import print_json


def run(options: LiveOptions) -> None:
    """Show the cap of every server, or set it. Raises TunerError."""
    if options.profile is not None and options.reset:
        raise UsageError("PROFILE and --reset exclude each other", hint="Use one at a time.")
    sockets = [rank for each in options.socket for rank in control.ranks(each)]
    servers = {path: control.ask(path, Request("state")) for path in sockets}
    request, warnings = Request("state"), list[str]()
    if options.profile is not None:
        request, warnings = _of_profile(options.profile, servers, is_forced=options.force)
    elif options.reset:
        request = Request("reset", reason="as the server was started")
    was = {path: state.max_num_seqs for path, state in servers.items()}
    for number, path in enumerate(sockets):
        try:
            servers[path] = control.ask(path, request)
        except TunerError as problem:
            done = ", ".join(map(str, sockets[:number])) or "none"
            problem.hint = f"{problem.hint} Then run it again; set already: {done}."
            raise
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
    if options.json:
        states = [
            {"socket": str(path), "before": was[path], **msgspec.to_builtins(state)}
            for path, state in servers.items()
        ]
        print_json({"servers": states, "warnings": warnings})
        return
    for path, state in servers.items():
        cap = state.max_num_seqs
        sys.stdout.write(
            f"{printable(str(path))}: max_num_seqs {cap} of {state.built}"
            f"{f', was {was[path]}' * (was[path] != cap)}\n"
        )


def _of_profile(
    path: Path, servers: Mapping[Path, State], *, is_forced: bool
) -> tuple[Request, list[str]]:
    """Compare a profile with the state of every server; return what to ask for, and warnings.
    Raises what speaks against it."""
    profile = profiles.load(path)
    if undecided := fit.undecided(profile, source=str(path), force=is_forced):
        raise undecided
    cap, mismatches, warnings = profile.decision.max_num_seqs, dict[str, fit.Mismatch](), []
    for socket, state in servers.items():
        if cap > state.built:
            raise GateError(
                f"{path}: max_num_seqs {cap} is more than the {state.built} that the server at "
                f"{socket} was built for",
                hint=f"Start the server with --max-num-seqs {cap} or more: its buffers, graphs "
                "and KV cache are made for that when it starts.",
            )
        arguments = dict(state.arguments)
        if "quantization" not in profile.engine:  # a checkpoint may bring its own
            arguments.pop("quantization", None)
        hosts = [fit.Host.of(state.vllm, state.device)]
        here = fit.Deployment(arguments=arguments, source=str(socket), hosts=hosts, is_new=True)
        mismatches |= {each.words: each for each in fit.mismatches(profile, here)}
        warnings += [
            f"{each.name} was {each.profile} when measured; {socket} has {each.other}"
            for each in difference.of_deployment(profile, here)
            if each.section == "engine" and each.name not in {"max_num_seqs", *fit.NUMERICS}
        ]
    differing = list(mismatches.values())
    if not is_forced and (refusal := fit.refusal(profile, differing)):
        raise refusal
    reason = "; ".join([f"profile {profile.digest}", *mismatches])
    return Request("set", cap, reason), [*fit.cautions(profile, differing), *warnings]
