"""The plan of ``tuner apply --live``: what is asked of which server, and whether it may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tuner.commands.apply.options import ApplyOptions
from tuner.engines.server.cap_schedule import CapAt, CapSchedule
from tuner.engines.server.protocol import (
    VERSION,
    Change,
    ClearSchedule,
    RollBack,
    SetLimits,
    SetSchedule,
    State,
)
from tuner.errors import GateError, UsageError
from tuner.live import server as live_server
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.rollout import difference, rollout
from tuner.rollout.targets.seam import Platform, Stated

LONGEST_REASON = 500
MOST_OVERRIDES = 20


@dataclass(frozen=True, slots=True)
class ControlledServer:
    socket: Path
    state: State


@dataclass(frozen=True, slots=True)
class _Checked:
    """A profile that may be used, and what is said about that."""

    chosen: ServingProfile
    warnings: tuple[str, ...]
    override: tuple[str, ...]


def plan(
    servers: Sequence[ControlledServer], options: ApplyOptions
) -> tuple[list[Change], tuple[str, ...]]:
    """Return a change for every server, and warnings; no changes where only the state is asked for.

    Raises ProfileError, UsageError, InputError, UndecidedError and GateError.
    """
    if options.profile is not None:
        checked = _check(options.profile, servers, options)
        return [_set(one, checked, options) for one in servers], checked.warnings
    if options.at:
        return _schedule(servers, options)
    if options.clear_schedule:
        return [_clear(one, options) for one in servers], ()
    if options.rollback is not None:
        return [_roll_back(one, options) for one in servers], ()
    return [], ()


# -- what is asked for


def _set(server: ControlledServer, checked: _Checked, options: ApplyOptions) -> SetLimits:
    return SetLimits(
        version=VERSION,
        do="set",
        revision=server.state.revision,
        reason=options.reason,
        override=list(checked.override[:MOST_OVERRIDES]),
        max_num_seqs=checked.chosen.decision.max_num_seqs,
        max_num_batched_tokens=_tokens(checked.chosen, options),
        profile=checked.chosen.digest,
    )


def _schedule(
    servers: Sequence[ControlledServer], options: ApplyOptions
) -> tuple[list[Change], tuple[str, ...]]:
    caps: list[CapAt] = []
    warnings: list[str] = []
    override: list[str] = []
    assert options.zone is not None
    for text in options.at:
        at, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--at {text}: not HH:MM=PROFILE", hint="--at 07:00=day.yaml")
        checked = _check(Path(path), servers, options)
        caps.append(_cap(at, checked.chosen, options))
        warnings += checked.warnings
        override += checked.override
    try:
        schedule = CapSchedule(zone=options.zone, caps=sorted(caps, key=lambda cap: cap.at))
    except ValidationError as problem:
        what = problem.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(
            f"--at, --zone: {what}", hint="--at 07:00=day.yaml --at 22:00=night.yaml --zone UTC"
        ) from None
    changes: list[Change] = [
        SetSchedule(
            version=VERSION,
            do="schedule",
            revision=one.state.revision,
            reason=options.reason,
            override=list(dict.fromkeys(override))[:MOST_OVERRIDES],
            schedule=schedule,
        )
        for one in servers
    ]
    return changes, tuple(dict.fromkeys(warnings))


def _cap(at: str, chosen: ServingProfile, options: ApplyOptions) -> CapAt:
    try:
        return CapAt(
            at=at,
            max_num_seqs=chosen.decision.max_num_seqs,
            max_num_batched_tokens=_tokens(chosen, options),
            profile=chosen.digest,
        )
    except ValidationError:
        raise UsageError(f"--at {at}: no time of day", hint="From 00:00 to 23:59.") from None


def _clear(server: ControlledServer, options: ApplyOptions) -> ClearSchedule:
    revision, reason = server.state.revision, options.reason
    return ClearSchedule(version=VERSION, do="clear_schedule", revision=revision, reason=reason)


def _roll_back(server: ControlledServer, options: ApplyOptions) -> RollBack:
    revision, reason = server.state.revision, options.reason
    return RollBack(version=VERSION, do="rollback", revision=revision, reason=reason)


def _tokens(chosen: ServingProfile, options: ApplyOptions) -> int | None:
    tokens = chosen.engine.get("max_num_batched_tokens")
    return tokens if options.token_budget and isinstance(tokens, int) else None


# -- whether it may be


def _check(path: Path, servers: Sequence[ControlledServer], options: ApplyOptions) -> _Checked:
    """Hold a profile against every server. Raises what speaks against it."""
    chosen = profile.load(path)
    undecided = rollout.undecided(chosen, source=str(path), force=options.force)
    if undecided is not None:
        raise undecided
    mismatching: dict[str, rollout.Mismatch] = {}
    notes: list[str] = []
    for server in servers:
        _check_fits(chosen, path, server, options)
        mismatching |= {one.words: one for one in rollout.mismatches(chosen, _here(chosen, server))}
        notes += _other_settings(chosen, server, options)
    if options.url is not None:
        there = live_server.ask(options.url)
        stated = {name: Stated(value, 0) for name, value in there.arguments.items()}
        version = Platform(vllm=Stated(there.version, 0) if there.version else None)
        here = rollout.Deployment(stated, options.url, version, is_new=True)
        mismatching |= {one.words: one for one in rollout.mismatches(chosen, here)}
    found = list(mismatching.values())
    refusal = rollout.refusal(chosen, found)
    if refusal is not None and not options.force:
        raise refusal
    override = [one.words for one in found]
    if chosen.decision.verdict == "inconclusive":
        override.append(rollout.verdict(chosen))
    warnings = (*rollout.cautions(chosen, found), *notes)
    return _Checked(chosen, warnings, tuple(text[:LONGEST_REASON] for text in override))


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


def _here(chosen: ServingProfile, server: ControlledServer) -> rollout.Deployment:
    """Return what a server says of itself, as what a profile is held against."""
    about = server.state.about
    stated = {
        name: Stated(value, 0)
        for name, value in about.arguments.items()
        if name != "quantization" or name in chosen.engine  # a checkpoint may bring its own
    }
    platform, machine = Platform(vllm=Stated(about.vllm, 0)), None
    if about.device is not None:
        platform, machine = Platform(), rollout.LocalMachine.of(about.vllm, about.device)
    return rollout.Deployment(stated, str(server.socket), platform, machine, is_new=True)


def _other_settings(
    chosen: ServingProfile, server: ControlledServer, options: ApplyOptions
) -> list[str]:
    """Say which of the profile's other arguments the server does not have."""
    state = server.state
    present = state.about.arguments | state.limits.model_dump()
    found = difference.of_server(chosen, present, None, source=str(server.socket))
    ours = {"max_num_seqs", "model", *(["max_num_batched_tokens"] if options.token_budget else [])}
    return [
        f"{one.name} was {one.profile} when measured; {server.socket} has {one.other}"
        for one in found
        if one.section == "engine" and one.name not in ours | rollout.NUMERICS.keys()
    ]
