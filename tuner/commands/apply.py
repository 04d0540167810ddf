"""Runs ``tuner apply``: plan an edit of one file, then show it, write it, or take it back."""

import difflib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.commands.options import ApplyOptions
from tuner.errors import ByHandError, GateError, TargetError, TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.rollout import backup, beside, fit, monitor
from tuner.rollout.find import KINDS, Target, read_text
from tuner.rollout.server import Arguments
from tuner.system import files, yaml_strict
from tuner.system.printable import printable

DEFAULT_FILE = Path("serve.yaml")
_BOM = "\ufeff"
_OF_A_SERVER = "container model_is pin admission_limits"
_LONGEST = 60
"""Of a value that is shown."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """An edit of one file, and what that changes."""

    path: Path
    old: str | None
    """None: the file is new."""

    new: str
    kind: str
    """Of the file, as in ``--to``."""

    next: str
    """What to do with the file, with ``{file}`` for its name."""

    before: Arguments = field(default_factory=dict)
    after: Arguments = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reasons: Sequence[str] = ()
    """Where values come from that are not in the profile."""

    refused: TunerError | None = None
    """Why it is not written, be it without ``--force`` or at all."""

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
    warnings, copy, refused = list(edit.warnings), None, edit.refused
    if refused is None and options.check and edit.new != edit.old:
        refused = GateError(
            f"{edit.path}: is not as the profile has it",
            hint="tuner apply without --check writes it.",
        )
    is_dry_run = options.dry_run or refused is not None
    if not is_dry_run and edit.new != edit.old:
        if edit.old is not None and (links := files.resolve(edit.path).stat().st_nlink - 1):
            warnings.append(f"hard links to the old content of {edit.path} remain: {links}")
        was = None if edit.old is None else edit.old.encode()
        copy = backup.write(edit.path, edit.new.encode(), was=was)
    if options.json:
        _print(json.dumps(_document(edit, profile, warnings, copy, is_dry_run=is_dry_run)))
    else:
        for warning in warnings:  # they may quote what a file holds
            sys.stderr.write(f"Warning: {printable(warning)}\n")
        _print(_diff(edit) if is_dry_run else _summary(edit, profile, copy))
        if is_dry_run and edit.new == edit.old:
            sys.stderr.write(f"{printable(str(edit.path))}: nothing to change\n")
    if refused is not None:
        raise refused


def _given(options: ApplyOptions, names: str) -> list[str]:
    """Return which of these options are set, as the user spells them."""
    return [
        name.upper() if name in {"file", "profile"} else f"--{name.replace('_', '-')}"
        for name in names.split()
        if getattr(options, name)
    ]


def _check_usage(options: ApplyOptions) -> None:
    """Raise UsageError for options that contradict each other."""
    others = _given(options, f"profile file to selector dry_run check {_OF_A_SERVER}")
    if options.rollback is not None and others:
        hint = f"tuner apply --rollback {options.rollback}"
        raise UsageError(f"--rollback and {others[0]} exclude each other", hint=hint)
    if options.rollback is None and options.profile is None:
        hint = "tuner apply profile.yaml [FILE]; tuner sweep writes one."
        raise UsageError("which profile?", hint=hint)
    kinds = [*KINDS, *monitor.KINDS]
    if options.to not in {None, *kinds}:
        raise UsageError(f"no kind of file {options.to!r}", hint=f"One of {', '.join(kinds)}.")


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
    path = options.file or DEFAULT_FILE
    old = read_text(path) if options.file or options.to not in monitor.KINDS else None
    kind = monitor.kind_of(options.to, old or "")
    if kind is not None:
        if undecided is not None:
            raise undecided
        return _watching(profile, kind, options)
    if options.selector is not None:
        hint = f"Use it with --to {' or '.join(monitor.KINDS)}."
        raise UsageError("--selector is of what watches servers", hint=hint)
    plan = _new if old is None else _edit
    return plan(profile, path, options, old or "", undecided)


def _edit(
    profile: ServingProfile, path: Path, options: ApplyOptions, old: str, refusal: TunerError | None
) -> Edit:
    """Return the edit of a file that is there."""
    target = Target.of(path, old.removeprefix(_BOM), to=options.to, name=options.container)
    server = target.server()
    here = target.deployment(server)
    result = fit.mismatches(profile, here, is_its_model=options.model_is is not None)
    if not options.force:
        refusal = refusal or fit.refusal(profile, result)
    limits, reasons = fit.admission(profile) if options.admission_limits else ({}, ())
    wanted = fit.wanted(profile, server.arguments, pin=options.pin) | limits
    wanted = {n: v for n, v in wanted.items() if n not in fit.of_the_file(result)}
    new, after = target.edited(server, wanted)
    refusal = fit.clash(here, wanted) or refusal
    cautions = fit.cautions(profile, [] if refusal else result, here)
    return Edit(
        path=path,
        old=old,
        new=_BOM * old.startswith(_BOM) + new,
        kind=target.kind,
        next=f"start: {KINDS[target.kind]['start']}",
        before=server.arguments,
        after=after.arguments,
        warnings=[*cautions, *beside.overruled(path, target.kind, server.name)],
        reasons=reasons,
        refused=refusal,
    )


def _new(
    profile: ServingProfile, path: Path, options: ApplyOptions, _: str, refusal: TunerError | None
) -> Edit:
    """Return the edit that makes a new config of ``vllm serve``, with every argument."""
    if options.to not in {None, "vllm-config"}:
        hint = f"tuner apply PROFILE FILE --to {options.to}"
        raise UsageError(f"which file? {options.to} is written into one that is there", hint=hint)
    if path.suffix not in {".yaml", ".yml"}:
        what = "no such file, and a new one must end in .yaml or .yml"
        raise TargetError(f"{path}: {what}", hint="Check the path.")
    limits, reasons = fit.admission(profile) if options.admission_limits else ({}, ())
    arguments = fit.settings(profile) | limits
    config = {
        ("no-" if value is False else "") + name.replace("_", "-"): value is False or value
        for name, value in arguments.items()
        if value is not None
    }
    here = fit.Deployment(arguments={}, source=str(path), hosts=fit.Host.here(), is_new=True)
    result = fit.mismatches(profile, here)
    refusal = refusal or (None if options.force else fit.refusal(profile, result))
    return Edit(
        path=path,
        old=None,
        new=yaml_strict.dump(config),
        kind="vllm-config",
        next=f"start: {KINDS['vllm-config']['start']}",
        after=arguments,
        warnings=fit.cautions(profile, [] if refusal else result),
        reasons=reasons,
        refused=refusal,
    )


def _watching(profile: ServingProfile, kind: str, options: ApplyOptions) -> Edit:
    """Return the edit of a file that watches servers: it is tuner's own as a whole."""
    for name in _given(options, _OF_A_SERVER):
        hint = f"{name} is of a server's own file; {kind} only watches it."
        raise UsageError(f"{name} and {kind} exclude each other", hint=hint)
    path = options.file or Path(monitor.KINDS[kind]["file"])
    old = read_text(path)
    if old is not None:
        monitor.check_replaceable(old, kind, source=str(path))
    return Edit(
        path=path,
        old=old,
        new=monitor.render(kind, profile, matchers=options.selector),
        kind=kind,
        next=f"next: {monitor.KINDS[kind]['next']}",
        warnings=fit.cautions(profile, []),
    )


# Show


def _document(
    edit: Edit,
    profile: ServingProfile,
    warnings: Sequence[str],
    copy: Path | None,
    *,
    is_dry_run: bool,
) -> dict[str, Any]:
    status = "created" if edit.old is None else "changed"
    return {
        "file": str(edit.path),
        "kind": edit.kind,
        "status": "unchanged" if edit.new == edit.old else status,
        "max_num_seqs": profile.decision.max_num_seqs,
        "changes": edit.changes(),
        "backup": None if copy is None else str(copy),
        "warnings": warnings,
        "reasons": edit.reasons,
        "dry_run": is_dry_run,
    } | ({"diff": _diff(edit)} if is_dry_run else {})


def _summary(edit: Edit, profile: ServingProfile, copy: Path | None) -> str:
    """Return what was written, line by line; ``copy`` is the backup."""
    path = printable(str(edit.path))
    if edit.new == edit.old:
        return f"{path}: nothing to change, max_num_seqs is {profile.decision.max_num_seqs}"
    lines = [f"{path}: {'written' if edit.old is None else 'changed'}"]
    for change in edit.changes():
        before, after = _shown(change["before"]), _shown(change["after"])
        lines.append(f"  {change['argument']}: {before} -> {after}")
    lines += [f"  because {printable(reason)}" for reason in edit.reasons]
    lines += [] if copy is None else [f"backup: {printable(str(copy))}"]
    unit = edit.path.parent if edit.path.suffix == ".conf" else edit.path  # of a drop-in
    file = _for_shell(str(edit.path))
    command = edit.next.replace("{file}", file).replace("{unit}", _for_shell(unit.stem))
    return "\n".join([*lines, command, f"undo: tuner apply --rollback {file}"])


def _for_shell(name: str) -> str:
    """Return the word that bash takes for a name, with nothing hidden in it."""
    if name.isprintable():
        return shlex.quote(name)
    in_bytes = "".join(f"\\x{byte:02x}" for byte in os.fsencode(name))
    return f"$'{in_bytes}'"


def _shown(value: object) -> str:
    """Return a value as JSON, cut to _LONGEST: ASCII, so nothing in a file moves the cursor."""
    text = "unset" if value is None else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _diff(edit: Edit) -> str:
    """Return the unified diff from what is there to what is written, as ``patch`` takes it; for a
    terminal nothing in it moves the cursor or hides."""
    path = printable(str(edit.path))
    # patch splits at line feeds and nowhere else
    old, new = ([f"{line}\n" for line in text.split("\n")] for text in (edit.old or "", edit.new))
    for side in (old, new):
        if last := side.pop().removesuffix("\n"):
            side.append(f"{last}\n\\ No newline at end of file\n")
    source = "/dev/null" if edit.old is None else path
    text = "".join(difflib.unified_diff(old, new, source, path)).removesuffix("\n")
    return (
        "".join(c if c in "\t\n" else printable(c) for c in text) if sys.stdout.isatty() else text
    )


def _print(text: str) -> None:
    """Write the file's own bytes, whatever the locale is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{text}\n".encode() if text else b"")
    sys.stdout.buffer.flush()
