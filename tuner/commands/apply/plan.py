"""The edit that ``tuner apply`` would make: of which kind of file, and what speaks against it."""

import contextlib
import getpass
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tuner.commands.apply import generated as apply_generated
from tuner.commands.apply.options import ApplyOptions
from tuner.commands.apply.reading import asked_of, read_text
from tuner.commands.apply.view import Edit
from tuner.engines import provenance
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import supported
from tuner.errors import (
    ByHandError,
    GateError,
    ProfileError,
    TargetError,
    TunerError,
    UsageError,
)
from tuner.profile import profile
from tuner.profile.numbers import Admission
from tuner.profile.schema import ServingProfile
from tuner.rollout import rollout
from tuner.rollout.backup import Override
from tuner.rollout.monitoring import registry as monitoring
from tuner.rollout.targets.kinds import helm_values, kserve, systemd
from tuner.rollout.targets.kinds import registry as targets
from tuner.rollout.targets.kinds.detect import detect
from tuner.rollout.targets.seam import Asked, Overruled
from tuner.rollout.targets.server import Server, Target
from tuner.system import files


@dataclass(frozen=True, slots=True)
class _Places:
    read_from: Path | None
    """None: there is no file to begin with."""

    path: Path
    """What is written."""


def plan(options: ApplyOptions) -> Edit:
    """Return the edit, with what speaks against it. Raises ProfileError, TargetError, UsageError,
    and GateError or UndecidedError where there is no edit to show."""
    assert options.profile is not None
    chosen = profile.load(options.profile)
    rollout.check_visible(chosen)
    if options.model_is is not None and not rollout.is_model_of(chosen, options.model_is):
        raise GateError(
            f"--model-is {options.model_is}: the profile was measured with {chosen.model}",
            hint="Sweep with the model that is deployed.",
        )
    undecided = rollout.undecided(chosen, source=str(options.profile), force=options.force)
    text = (read_text(options.file) if options.file is not None else None) or ""
    kind = monitoring.kind_of(options.to, text)
    if kind is not None:
        if undecided is not None:
            raise undecided
        return apply_generated.plan(
            chosen,
            kind,
            options,
            warnings=rollout.cautions(chosen, []),
            override=_override(chosen, _despite(chosen, []), options),
        )
    target = _target(options, text)
    with pasted(chosen, options.profile):
        return _edit(chosen, target, _places(target, options), options, undecided)


def _target(options: ApplyOptions, text: str) -> Target:
    """Return the kind of file, with which the options agree. Raises UsageError, TargetError."""
    watching = [one.NAME for one in monitoring.KINDS]
    if options.selector is not None:
        raise UsageError(
            "--selector is of what watches servers",
            hint=f"Use it with --to {' or '.join(watching)}.",
        )
    file = options.file or options.output
    asked = _asked(file or Path(targets.TARGETS[0].DEFAULT_FILE), options)
    assert options.profile is not None
    with pasted(profile.load(options.profile), options.profile):
        target = target_of(options.to, file, text, asked, also=watching)
    if options.exec and target is not targets.TARGETS[0]:
        raise UsageError(
            f"--exec and {target.NAME} exclude each other",
            hint=f"vLLM is started with a {targets.TARGETS[0].NAME} file.",
        )
    if options.canary is not None and target is not kserve:
        raise UsageError(
            f"--canary and {target.NAME} exclude each other",
            hint=f"{kserve.NAME} splits the traffic of a service; leave it out.",
        )
    if options.at and target is not helm_values:
        raise UsageError(
            f"--at and {target.NAME} exclude each other",
            hint=f"It says where vLLM's arguments are in {helm_values.NAME}; leave it out.",
        )
    return target


def _asked(source: Path, options: ApplyOptions) -> Asked:
    if len(options.at) > 1:
        raise UsageError("--at twice", hint="Apply the profile to one server at a time.")
    at = options.at[0] if options.at else None
    return asked_of(source, container=options.container, at=at, trusted=options.force)


def target_of(
    to: str | None, file: Path | None, text: str, asked: Asked, *, also: Sequence[str] = ()
) -> Target:
    """Return the target that is named, or else that a file is of; ``also`` are other names."""
    if to is not None:
        return targets.named(to, also=also)
    return targets.TARGETS[0] if file is None else detect(file, text, asked)


@contextlib.contextmanager
def pasted(chosen: ServingProfile, path: Path) -> Iterator[None]:
    """Give a refusal to edit a file the profile's flags, to be pasted. Raises ByHandError."""
    try:
        yield
    except ByHandError as problem:
        words = rollout.to_paste(chosen, source=str(path))
        raise ByHandError(
            str(problem), hint=f"{problem.hint} {problem.paste(words)}", paste=problem.paste
        ) from None


def _edit(
    chosen: ServingProfile,
    target: Target,
    places: _Places,
    options: ApplyOptions,
    refusal: TunerError | None,
) -> Edit:
    path, read_from = places.path, places.read_from
    source = path if read_from is None else read_from
    asked = _asked(source, options)
    old = base = "" if read_from is None else read_text(read_from) or ""
    server = edited = target.opened(base, asked)
    if target is systemd and path.suffix == ".conf" and source.suffix == ".service":
        base, old, read_from = systemd.drop_in(base, asked), "", None
        edited = target.opened(base, _asked(path, options))
    here = deployment(target, server, model_is=options.model_is)
    found = rollout.mismatches(chosen, here)
    overruled = [one for one in server.overruled if _decides(one, path, source)]
    if not options.force:
        refusal = refusal or rollout.refusal(chosen, found) or _refuse_overruled(source, overruled)
    arguments, reasons = _arguments(chosen, options)
    for name in rollout.of_the_file(found) & arguments.keys():
        del arguments[name]
    refusal = _clash(here, arguments, source) or refusal
    warnings = [*rollout.cautions(chosen, [] if refusal else found, here), *server.notes]
    if options.canary is not None:
        base, beware = kserve.with_canary(base, options.canary, asked)
        edited = target.opened(base, asked)
        warnings += beware
        reasons += (f"--canary: its next revision gets {options.canary} % of the traffic",)
    new = edited.written(arguments)
    present = old if path == read_from else read_text(path)
    if path != read_from and present not in (None, new) and not options.force:
        raise TargetError(
            f"{path}: already there",
            hint=f"Edit it in place: tuner apply PROFILE {path}; or overwrite it with --force.",
        )
    despite = _despite(chosen, found, server, here, overruled)
    warnings += [f"{one.place} decides after {source}: it {one.what}" for one in server.overruled]
    return Edit(
        path=path,
        read_from=read_from,
        old=old,
        new=new,
        was=None if present is None else present.encode(),
        profile=chosen.digest,
        max_num_seqs=chosen.decision.max_num_seqs,
        before={name: one.value for name, one in server.stated.items()},
        after={name: one.value for name, one in edited.reopened(new).stated.items()},
        warnings=tuple(warnings),
        reasons=reasons,
        kind=target.NAME,
        next=f"start: {server.rollout.start}",
        undo=server.rollout.undo,
        override=_override(chosen, despite, options),
        refused=refusal,
    )


def _clash(
    here: rollout.Deployment, arguments: dict[str, ArgumentValue], source: Path
) -> TargetError | None:
    """Return why the file's other arguments would undo those of the profile."""
    try:
        rollout.check_together(here.stated, arguments, source=str(source))
    except TargetError as problem:
        return problem
    return None


def _arguments(
    chosen: ServingProfile, options: ApplyOptions
) -> tuple[dict[str, ArgumentValue], tuple[str, ...]]:
    """Return what is written, and where those values come from that are not in the profile."""
    arguments = rollout.settings(chosen, live_knob=options.live_knob)
    if not options.admission_limits:
        return arguments, ()
    admitted = _admission(chosen)
    arguments["max_num_queued_reqs"] = admitted.max_num_queued_reqs
    arguments["max_num_queued_tokens"] = admitted.max_num_queued_tokens
    return arguments, tuple(admitted.reasons)


def _decides(one: Overruled, path: Path, source: Path) -> bool:
    """Whether another file decides wherever this one is used; of a unit's drop-ins, the last."""
    return one.always and (path == source or one.path > str(path))


def _refuse_overruled(source: Path, overruled: Sequence[Overruled]) -> TargetError | None:
    if not overruled:
        return None
    first = overruled[0]
    return TargetError(
        f"{source}: the arguments are decided elsewhere: {first.place} {first.what}",
        hint=f"Apply the profile there: tuner apply PROFILE {first.path}; --force writes it here, "
        "too, on record.",
    )


def _admission(chosen: ServingProfile) -> Admission:
    if chosen.admission is None:
        no_limit = chosen.decision.slo.ttft_ms is None
        missing = "limit on the TTFT" if no_limit else "law of its step times"
        raise ProfileError(
            f"the profile has no {missing} to derive admission limits from",
            hint="Sweep with --slo ttft=…, on an engine that says how long its iterations take.",
        )
    return chosen.admission


def deployment(
    target: Target, server: Server, *, model_is: str | None = None
) -> rollout.Deployment:
    """Return what a server's file says, and what is known of the machine that it runs on."""
    machine = _machine() if target.ON_THIS_MACHINE else None
    return rollout.Deployment(
        server.stated,
        server.asked.source,
        server.platform,
        machine,
        is_new=server.is_new,
        model_is=model_is,
    )


def _must_exist(target: Target) -> bool:
    return not target.DEFAULT_FILE


def _places(target: Target, options: ApplyOptions) -> _Places:
    """Return the file to read, if there is one, and the file to write."""
    if options.file is None and _must_exist(target):
        raise UsageError(
            f"which file? {target.NAME} is written into one that is there",
            hint=f"tuner apply PROFILE FILE --to {target.NAME}",
        )
    path = options.output or options.file or Path(target.DEFAULT_FILE)
    read_from = options.file
    for one in (path, read_from or path):
        if target.SUFFIXES and one.suffix not in target.SUFFIXES:
            raise TargetError(
                f"{one}: a file for {target.NAME} must end in {' or '.join(target.SUFFIXES)}",
                hint="Rename it, name another file, or say what it is with --to.",
            )
    if options.output is None:
        return _Places(path if files.resolve(path).exists() else None, path)
    if read_from is None:
        return _Places(None, path)
    if not files.resolve(read_from).exists():
        raise TargetError(f"{read_from}: no such file", hint="With -o, FILE is only read.")
    same = files.resolve(read_from) == files.resolve(path)
    return _Places(read_from, read_from if same else path)


def _despite(
    chosen: ServingProfile,
    found: Sequence[rollout.Mismatch],
    server: Server | None = None,
    here: rollout.Deployment | None = None,
    overruled: Sequence[Overruled] = (),
) -> list[str]:
    """Return what speaks against the edit, in words for the record."""
    despite = [one.words for one in found]
    if server is not None and not server.is_new and not server.evidence:
        despite.append(f"nothing in {server.asked.source} shows that it starts vLLM")
    if here is not None and here.model_is is not None:
        words = rollout.model_mismatch(chosen, here)
        despite += [] if words is None else [f"{words}: --model-is {here.model_is}"]
    despite += [f"{one.place} {one.what}" for one in overruled]
    if chosen.decision.verdict == "inconclusive":
        despite.append(rollout.verdict(chosen))
    return despite


def _override(chosen: ServingProfile, despite: list[str], options: ApplyOptions) -> Override | None:
    """Return what goes on record when something spoke against the edit."""
    if not despite:
        return None
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        user = "unknown user"
    return Override(
        who=f"{user}@{platform.node() or 'unknown machine'}",
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        profile=str(options.profile),
        profile_digest=chosen.digest,
        despite=despite,
    )


def _machine() -> rollout.LocalMachine:
    installed = provenance.versions()
    vllm = supported.version_in(installed)
    device: Mapping[str, object] = {}
    if vllm:
        from tuner.engines import devices  # noqa: PLC0415 - slow to load

        device = devices.device_facts()
    return rollout.LocalMachine.of(vllm, device)
