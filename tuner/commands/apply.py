"""Runs ``tuner apply``: plan an edit of one file, then show it, write it, or take it back."""

import difflib
import getpass
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tuner.commands.options import ApplyOptions
from tuner.errors import ByHandError, GateError, TargetError, TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.rollout import backup, beside, fit, monitor
from tuner.rollout.backup import Override
from tuner.rollout.find import KINDS, Target, read_text
from tuner.rollout.server import Arguments
from tuner.system import files, yaml_strict
from tuner.system.printable import printable

DEFAULT_FILE = Path("serve.yaml")
_BOM = "\ufeff"
_OF_A_SERVER = "container model_is pin live_knob admission_limits"
_LONGEST = 60
"""Of a value that is shown."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """An edit of one file, and what that changes."""

    path: Path
    new: str
    kind: str
    """Of the file, as in ``--to``."""

    next: str
    """What to do with the file, with ``{file}`` for its name."""

    read_from: Path | None = None
    """None: the file is new."""

    old: str = ""
    was: bytes | None = None
    """What is at ``path`` now; None: nothing."""

    before: Arguments = field(default_factory=dict)
    after: Arguments = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reasons: Sequence[str] = ()
    """Where values come from that are not in the profile."""

    despite: Sequence[str] = ()
    """What speaks against it."""

    refused: TunerError | None = None
    """Why it is not written, be it without ``--force`` or at all."""

    @property
    def is_needed(self) -> bool:
        return self.was != self.new.encode()

    def changes(self) -> list[dict[str, Any]]:
        return [
            {"argument": name, "before": self.before.get(name), "after": self.after.get(name)}
            for name in {**self.after, **self.before}
            if self.before.get(name) != self.after.get(name)
        ]


def run(options: ApplyOptions) -> None:
    """Plan the edit and write it. Raises TunerError; nothing is then half-written."""
    _check_usage(options)
    if options.rollback is not None:
        outcome = backup.roll_back(options.rollback, force=options.force)
        document = {"file": str(options.rollback), "status": outcome}
        text = f"{printable(str(options.rollback))}: {outcome}"
        _print(json.dumps(document) if options.json else text)
        return
    assert options.profile is not None
    profile = profiles.load(options.profile)
    fit.check_visible(profile)
    try:
        edit = _plan(profile, options)
    except ByHandError as problem:
        flags = " ".join(fit.to_paste(profile))
        raise ByHandError(str(problem), hint=f"{problem.hint} {flags}") from None
    override = _override(profile, edit, options)
    is_dry_run = options.dry_run or edit.refused is not None
    copy = None if is_dry_run or not edit.is_needed else _write(edit, profile, override, options)
    if options.json:
        document = _document(edit, profile, copy, override) | {"dry_run": is_dry_run}
        _print(json.dumps(document | ({"diff": _diff(edit)} if is_dry_run else {})))
    else:
        _warn(*edit.warnings)
        _print(_diff(edit) if is_dry_run else _summary(edit, profile, copy, override))
        if is_dry_run and not edit.is_needed:
            sys.stderr.write(f"{printable(str(edit.path))}: nothing to change\n")
    if edit.refused is not None:
        raise edit.refused


def _given(options: ApplyOptions, names: str) -> list[str]:
    """Return which of these options are set, as the user spells them."""
    return [
        name.upper() if name in {"file", "profile"} else f"--{name.replace('_', '-')}"
        for name in names.split()
        if getattr(options, name)
    ]


def _check_usage(options: ApplyOptions) -> None:
    """Raise UsageError for options that contradict each other."""
    modes = _given(options, "rollback dry_run check")
    others = _given(options, f"profile file to output selector {_OF_A_SERVER}")
    kinds, to = [*KINDS, *monitor.KINDS], options.to
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(modes)} exclude each other", hint="Use one at a time.")
    if options.rollback is not None and others:
        hint = f"tuner apply --rollback {options.rollback}"
        raise UsageError("--rollback takes the file and nothing else", hint=hint)
    if options.rollback is None and options.profile is None:
        hint = "tuner apply profile.yaml [FILE]; tuner sweep writes one."
        raise UsageError("which profile?", hint=hint)
    if to is not None and to not in kinds:
        raise UsageError(f"no kind of file {to!r}", hint=f"One of {', '.join(kinds)}.")


# Plan


def _plan(profile: ServingProfile, options: ApplyOptions) -> Edit:
    """Return the edit, with what speaks against it. Raises ProfileError, TargetError, UsageError,
    and GateError or UndecidedError where there is no edit to show."""
    if options.model_is is not None and not fit.is_model_of(profile, options.model_is):
        raise GateError(
            f"--model-is {options.model_is}: the profile was measured with {profile.model}",
            hint="Sweep with the model that is deployed.",
        )
    undecided = fit.undecided(profile, source=str(options.profile), force=options.force)
    text = (read_text(options.file) if options.file is not None else None) or ""
    kind = monitor.kind_of(options.to, text)
    if kind is not None:
        if undecided is not None:
            raise undecided
        return _watching(profile, kind, options)
    if options.selector is not None:
        hint = f"Use it with --to {' or '.join(monitor.KINDS)}."
        raise UsageError("--selector is of what watches servers", hint=hint)
    path = options.output or options.file or DEFAULT_FILE
    source = options.file or path
    if files.resolve(source).exists():
        return _edit(profile, source, path, options, undecided)
    if options.file is not None and options.output is not None:
        raise TargetError(f"{source}: no such file", hint="With -o, FILE is only read.")
    return _new(profile, path, options, undecided)


def _edit(
    profile: ServingProfile,
    source: Path,
    path: Path,
    options: ApplyOptions,
    refusal: TunerError | None,
) -> Edit:
    """Return the edit of a file that is there."""
    old = read_text(source) or ""
    read_from: Path | None = source
    target = Target.of(source, old.removeprefix(_BOM), to=options.to, name=options.container)
    server = target.server()
    if source.suffix == ".service" and path.suffix == ".conf":  # a drop-in for the unit
        own = target.text[slice(*server.spans[0])]
        old, read_from = "", None
        target = replace(target, path=path, text=f"[Service]\nExecStart=\nExecStart={own}\n")
        server = target.server()
    here = target.deployment(server)
    result = fit.mismatches(profile, here, is_its_model=options.model_is is not None)
    if not options.force:
        refusal = refusal or fit.refusal(profile, result)
    wanted, reasons = _wanted(profile, server.arguments, options)
    wanted = {n: v for n, v in wanted.items() if n not in fit.of_the_file(result)}
    new, after = target.edited(server, wanted)
    new = _BOM * old.startswith(_BOM) + new
    present = old if path == read_from else read_text(path)
    is_same = path.exists() and files.resolve(source) == files.resolve(path)
    if not is_same and present not in {None, new} and not options.force:
        hint = f"Edit it in place: tuner apply PROFILE {path}; or overwrite it with --force."
        raise TargetError(f"{path}: already there", hint=hint)
    despite = [each.words for each in result]
    if options.model_is is not None and (words := fit.model_mismatch(profile, here)) is not None:
        despite.append(f"{words}: --model-is {options.model_is}")
    refusal = fit.clash(here, wanted) or refusal
    cautions = fit.cautions(profile, [] if refusal else result, here)
    return Edit(
        path=source if is_same else path,
        new=new,
        kind=target.kind,
        next=f"start: {KINDS[target.kind]['start']}",
        read_from=read_from,
        old=old,
        was=None if present is None else present.encode(),
        before=server.arguments,
        after=after.arguments,
        warnings=[*cautions, *beside.overruled(source, target.kind, server.name)],
        reasons=reasons,
        despite=despite,
        refused=refusal,
    )


def _new(
    profile: ServingProfile, path: Path, options: ApplyOptions, refusal: TunerError | None
) -> Edit:
    """Return the edit that makes a new config of ``vllm serve``, with every argument."""
    if options.to not in {None, "vllm-config"}:
        hint = f"tuner apply PROFILE FILE --to {options.to}"
        raise UsageError(f"which file? {options.to} is written into one that is there", hint=hint)
    if path.suffix not in {".yaml", ".yml"}:
        what = "no such file, and a new one must end in .yaml or .yml"
        raise TargetError(f"{path}: {what}", hint="Check the path.")
    arguments, reasons = _wanted(profile, None, options)
    config = {
        ("no-" if value is False else "") + name.replace("_", "-"): value is False or value
        for name, value in arguments.items()
        if value is not None
    }
    hosts = fit.Host.here()
    here = fit.Deployment(arguments={}, source=str(path), hosts=hosts, is_new=True)
    result = fit.mismatches(profile, here)
    refusal = refusal or (None if options.force else fit.refusal(profile, result))
    return Edit(
        path=path,
        new=yaml_strict.dump(config),
        kind="vllm-config",
        next=f"start: {KINDS['vllm-config']['start']}",
        after=arguments,
        warnings=fit.cautions(profile, [] if refusal else result),
        reasons=reasons,
        despite=[each.words for each in result],
        refused=refusal,
    )


def _wanted(
    profile: ServingProfile, present: Arguments | None, options: ApplyOptions
) -> tuple[Arguments, Sequence[str]]:
    """Return what to write beside these arguments (None: into a new file), and reasons for it."""
    if present is None:
        wanted = fit.settings(profile, live_knob=options.live_knob)
    else:
        wanted = fit.wanted(profile, present, pin=options.pin, live_knob=options.live_knob)
    if not options.admission_limits:
        return wanted, ()
    limits, reasons = fit.admission(profile)
    return wanted | limits, reasons


def _watching(profile: ServingProfile, kind: str, options: ApplyOptions) -> Edit:
    """Return the edit of a file that watches servers: it is tuner's own as a whole."""
    for name in _given(options, _OF_A_SERVER):
        hint = f"{name} is of a server's own file; {kind} only watches it."
        raise UsageError(f"{name} and {kind} exclude each other", hint=hint)
    if options.file is not None and options.output is not None:
        hint = f"tuner apply PROFILE --to {kind} {options.output}"
        raise UsageError(f"-o and FILE exclude each other: {kind} is written whole", hint=hint)
    path = options.output or options.file or Path(monitor.KINDS[kind]["file"])
    present = read_text(path)
    if present is not None:
        monitor.check_replaceable(present, kind, source=str(path))
    return Edit(
        path=path,
        new=monitor.render(kind, profile, matchers=options.selector),
        kind=kind,
        next=f"next: {monitor.KINDS[kind]['next']}",
        read_from=None if present is None else path,
        old=present or "",
        was=None if present is None else present.encode(),
        warnings=fit.cautions(profile, []),
    )


def _override(profile: ServingProfile, edit: Edit, options: ApplyOptions) -> Override | None:
    """Return what goes on record when something spoke against the edit."""
    despite = list(edit.despite)
    despite += [fit.verdict(profile)] if profile.decision.verdict == "inconclusive" else []
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
        profile_digest=profile.digest,
        despite=despite,
    )


# Write and show


def _write(
    edit: Edit, profile: ServingProfile, override: Override | None, options: ApplyOptions
) -> Path | None:
    """Write the file, and return the copy of what it was."""
    if options.check:
        raise GateError(
            f"{edit.path}: is not as the profile has it",
            hint="tuner apply without --check writes it; --dry-run shows the change.",
        )
    real = files.resolve(edit.path)
    if real.exists() and (others := real.stat().st_nlink - 1):
        _warn(f"hard links to the old content of {edit.path} remain: {others}")
    copy = backup.write(
        edit.path, edit.new.encode(), was=edit.was, like=edit.read_from,
        profile=profile.digest, override=override,
    )  # fmt: skip
    return copy if copy is None or edit.path.is_symlink() else edit.path.with_name(copy.name)


def _document(
    edit: Edit, profile: ServingProfile, copy: Path | None, override: Override | None
) -> dict[str, Any]:
    return {
        "file": str(edit.path),
        "kind": edit.kind,
        "status": "created" if edit.was is None else "changed" if edit.is_needed else "unchanged",
        "max_num_seqs": profile.decision.max_num_seqs,
        "changes": edit.changes(),
        "backup": None if copy is None else str(copy),
        "warnings": list(edit.warnings),
        "reasons": list(edit.reasons),
        "override": None if override is None else msgspec.to_builtins(override),
    }


def _summary(
    edit: Edit, profile: ServingProfile, copy: Path | None, override: Override | None
) -> str:
    """Return what was written, line by line; ``copy`` is the backup."""
    path = printable(str(edit.path))
    if not edit.is_needed:
        return f"{path}: nothing to change, max_num_seqs is {profile.decision.max_num_seqs}"
    lines = [f"{path}: {'written' if edit.was is None else 'changed'}"]
    for change in edit.changes():
        before, after = _shown(change["before"]), _shown(change["after"])
        lines.append(f"  {change['argument']}: {before} -> {after}")
    lines += [f"  because {printable(reason)}" for reason in edit.reasons]
    lines += [] if copy is None else [f"backup: {printable(str(copy))}"]
    if override is not None:
        real = files.resolve(edit.path) if edit.path.is_symlink() else edit.path
        lines.append(f"override: on record in {printable(str(backup.record_of(real)))}")
    is_drop_in = edit.path.suffix == ".conf"
    unit = edit.path.parent.name.removesuffix(".d") if is_drop_in else f"{edit.path.stem}.service"
    name = str(edit.path)
    words = {"{file}": name, "{unit}": unit, "{path}": name if "/" in name else f"./{name}"}
    command = edit.next
    for placeholder, value in words.items():
        command = command.replace(placeholder, _for_shell(value))
    return "\n".join([*lines, command, f"undo: tuner apply --rollback {_for_shell(edit.path)}"])


def _for_shell(name: object) -> str:
    """Return the word that a shell, such as bash, takes for a name, with nothing hidden in it."""
    text = str(name)
    if text.isprintable():
        return shlex.quote(text)
    hidden = (c if c.isprintable() and c not in "'\\" else _in_bytes(c) for c in text)
    return f"$'{''.join(hidden)}'"


def _in_bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _shown(value: object) -> str:
    """Return a value as JSON, cut to _LONGEST: ASCII, so nothing in a file moves the cursor."""
    text = "unset" if value is None else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _diff(edit: Edit) -> str:
    """Return the unified diff from what is read to what is written, as ``patch`` takes it; for a
    terminal nothing in it moves the cursor or hides."""
    source = printable(str(edit.read_from or "/dev/null"))
    # patch splits at line feeds and nowhere else
    old, new = ([f"{line}\n" for line in text.split("\n")] for text in (edit.old, edit.new))
    for side in (old, new):
        if last := side.pop().removesuffix("\n"):
            side.append(f"{last}\n\\ No newline at end of file\n")
    lines = difflib.unified_diff(old, new, source, printable(str(edit.path)))
    text = "".join(lines).removesuffix("\n")
    if sys.stdout.isatty():
        text = "".join(c if c in "\t\n" else printable(c) for c in text)
    return text


def _print(text: str) -> None:
    """Write the file's own bytes, whatever the locale is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{text}\n".encode() if text else b"")
    sys.stdout.buffer.flush()


def _warn(*warnings: str) -> None:
    """Print warnings, each on one line. They may quote what a file holds."""
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
