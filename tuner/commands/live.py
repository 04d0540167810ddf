"""``tuner live``: show and set the cap of servers that run, over their control sockets."""

import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import asdict

from tuner.commands.options import LiveOptions
from tuner.errors import GateError, TunerError, UsageError
from tuner.live import control
from tuner.live.control import State
from tuner.profile import profile as profiles
from tuner.rollout import difference, fit
from tuner.system.printable import printable
from tuner.views.text import print_json


def run(options: LiveOptions) -> None:
    """Show the cap of every server, or set it. Raises TunerError."""
    if options.profile is not None and options.reset:
        raise UsageError("PROFILE and --reset exclude each other", hint="Use one at a time.")
    sockets = [rank for each in options.socket for rank in control.ranks(each)]
    servers = {path: control.ask(path) for path in sockets}
    was, warnings = {path: state.max_num_seqs for path, state in servers.items()}, list[str]()
    caps = {path: state.built for path, state in servers.items()} if options.reset else {}
    reason = "as the server was started"
    if options.profile is not None:
        cap, reason, warnings = _of_profile(options.profile, servers, is_forced=options.force)
        caps = dict.fromkeys(sockets, cap)
    for number, (path, cap) in enumerate(caps.items()):
        try:
            servers[path] = control.ask(path, cap, reason)
        except TunerError as problem:
            done = ", ".join(map(str, sockets[:number])) or "none"
            problem.hint += f" Then run it again; set already: {done}."
            raise
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
    if options.json:
        states = [
            {"socket": str(path), "before": was[path], **asdict(state)}
            for path, state in servers.items()
        ]
        print_json({"servers": states, "warnings": warnings})
        return
    for path, state in servers.items():
        cap = state.max_num_seqs
        before = f", was {was[path]}" * (was[path] != cap)
        sys.stdout.write(f"{printable(str(path))}: max_num_seqs {cap} of {state.built}{before}\n")


def _of_profile(
    path: Path, servers: Mapping[Path, State], *, is_forced: bool
) -> tuple[int, str, list[str]]:
    """Compare a profile with the state of every server; return its cap, why, and warnings. Raises
    what speaks against it."""
    profile = profiles.load(path)
    if undecided := fit.undecided(profile, source=str(path), force=is_forced):
        raise undecided
    cap, reasons, warnings = profile.decision.max_num_seqs, [f"profile {profile.digest}"], []
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
        differing = fit.mismatches(profile, here)
        if not is_forced and (refusal := fit.refusal(profile, differing)):
            raise refusal
        reasons += [each.words for each in differing]
        warnings += fit.cautions(profile, differing)
        warnings += [
            f"{each.name} was {each.profile} when measured; {socket} has {each.there}"
            for each in difference.of_deployment(profile, here)
            if each.section == "engine" and each.name not in {"max_num_seqs", *fit.NUMERICS}
        ]
    return cap, "; ".join(dict.fromkeys(reasons)), list(dict.fromkeys(warnings))
