"""Runs ``tuner apply``: plan an edit of one file, then show it, write it, or take it back."""

import difflib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    before: Arguments = field(default_factory=dict)
    after: Arguments = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reasons: Sequence[str] = ()
    """Where values come from that are not in the profile."""

    refused: TunerError | None = None
    """Why it is not written, be it without ``--force`` or at all."""


def run(options: ApplyOptions) -> None:
    """Plan the edit and write it. Raises TunerError; nothing is then half-written."""
    if options.rollback is not None:
        _roll_back(options, options.rollback)
        return
    if options.profile is None:
        hint = "tuner apply profile.yaml [FILE]; tuner sweep writes one."
        raise UsageError("which profile?", hint=hint)
    profile = profiles.load(options.profile)
    fit.check_visible(profile)
    try:
        edit = _checked(_plan(profile, options), options)
    except ByHandError as problem:
        problem.hint += f" {' '.join(fit.to_paste(profile))}"
        raise
    warnings, copy = list(edit.warnings), None
    is_dry_run = options.dry_run or edit.refused is not None
    if not is_dry_run and edit.new != edit.old:
        if edit.old is not None and (links := files.resolve(edit.path).stat().st_nlink - 1):
            warnings.append(f"hard links to the old content of {edit.path} remain: {links}")
        was = None if edit.old is None else edit.old.encode()
        copy = backup.write(edit.path, edit.new.encode(), was=was)
    changes = [
        {"argument": name, "before": edit.before.get(name), "after": edit.after.get(name)}
        for name in {**edit.after, **edit.before}
        if edit.before.get(name) != edit.after.get(name)
    ]
    if options.json:
        status = "created" if edit.old is None else "changed"
        document = {
            "file": str(edit.path),
            "kind": edit.kind,
            "status": "unchanged" if edit.new == edit.old else status,
            "max_num_seqs": profile.decision.max_num_seqs,
            "changes": changes,
            "backup": None if copy is None else str(copy),
            "warnings": warnings,
            "reasons": edit.reasons,
            "dry_run": is_dry_run,
        }
        _print(json.dumps(document | ({"diff": _diff(edit)} if is_dry_run else {})))
    else:
        for warning in warnings:  # they may quote what a file holds
            sys.stderr.write(f"Warning: {printable(warning)}\n")
        _print(_diff(edit) if is_dry_run else _summary(edit, profile, changes, copy))
        if is_dry_run and edit.new == edit.old:
            sys.stderr.write(f"{printable(str(edit.path))}: nothing to change\n")
    if edit.refused is not None:
        raise edit.refused


def _roll_back(options: ApplyOptions, path: Path) -> None:
    if options.profile is not None:
        hint = f"tuner apply --rollback {path}"
        raise UsageError("--rollback takes no profile", hint=hint)
    outcome = backup.roll_back(path, force=options.force)
    document = {"file": str(path), "status": outcome}
    _print(json.dumps(document) if options.json else f"{printable(str(path))}: {outcome}")


# Plan


def _plan(profile: ServingProfile, options: ApplyOptions) -> Edit:
    """Return the edit, with what speaks against it. Raises ProfileError, TargetError, UsageError,
    and GateError or UndecidedError where there is no edit to show."""
    if options.model_is is not None and not fit.is_model_of(profile, options.model_is):
        raise GateError(
            f"--model-is {options.model_is}: the profile was measured with {profile.model}",
            hint="Sweep with the model that is deployed.",
        )
    if options.to not in {None, *KINDS, *monitor.KINDS}:
        hint = f"One of {', '.join([*KINDS, *monitor.KINDS])}."
        raise UsageError(f"no kind of file {options.to!r}", hint=hint)
    refusal = fit.undecided(profile, source=str(options.profile), force=options.force)
    path = options.file or DEFAULT_FILE
    old = read_text(path) if options.file or options.to not in monitor.KINDS else None
    kind = monitor.kind_of(options.to, old or "")
    if kind is not None:
        if refusal is not None:
            raise refusal
        path = options.file or Path(monitor.KINDS[kind]["file"])
        return _watching(profile, kind, options.selector, path)
    if options.selector is not None:
        hint = f"Use it with --to {' or '.join(monitor.KINDS)}."
        raise UsageError("--selector is of what watches servers", hint=hint)
    limits, reasons = fit.admission(profile) if options.admission_limits else ({}, ())
    if old is None:
        edit = _new(profile, path, options, limits, refusal)
    else:
        edit = _edit(profile, (path, old), options, limits, refusal)
    return replace(edit, reasons=reasons)


def _edit(
    profile: ServingProfile,
    file: tuple[Path, str],
    options: ApplyOptions,
    limits: Arguments,
    refusal: TunerError | None,
) -> Edit:
    """Return the edit of a file that is there: its path and text."""
    path, text = file
    target = Target.of(path, text.removeprefix(_BOM), to=options.to, name=options.container)
    server = target.server()
    here = target.deployment(server)
    result = fit.mismatches(profile, here, is_its_model=options.model_is is not None)
    if not options.force:
        refusal = refusal or fit.refusal(profile, result)
    wanted = {**fit.wanted(profile, server.arguments, pin=options.pin), **limits}
    wanted = {n: v for n, v in wanted.items() if n not in fit.of_the_file(result)}
    new, after = target.edited(server, wanted)
    refusal = fit.clash(here, wanted) or refusal
    cautions = fit.cautions(profile, [] if refusal else result, here)
    return Edit(
        path=path,
        old=text,
        new=_BOM * text.startswith(_BOM) + new,
        kind=target.kind,
        before=server.arguments,
        after=after.arguments,
        warnings=[*cautions, *beside.overruled(path, target.kind, server.name)],
        refused=refusal,
    )


def _new(
    profile: ServingProfile,
    path: Path,
    options: ApplyOptions,
    limits: Arguments,
    refusal: TunerError | None,
) -> Edit:
    """Return the edit that makes a new config of ``vllm serve``, with every argument."""
    if options.to not in {None, "vllm-config"} or path.suffix not in {".yaml", ".yml"}:
        what = "no such file, and a new one is a config of vllm serve, whose name ends in .yaml"
        raise TargetError(f"{path}: {what}", hint="Check the path.")
    arguments = {**fit.settings(profile), **limits}
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
        after=arguments,
        warnings=fit.cautions(profile, [] if refusal else result),
        refused=refusal,
    )


def _watching(profile: ServingProfile, kind: str, matchers: str | None, path: Path) -> Edit:
    """Return the edit of a file that watches servers: it is tuner's own as a whole."""
    old = read_text(path)
    if old is not None:
        monitor.check_replaceable(old, kind, source=str(path))
    return Edit(
        path=path,
        old=old,
        new=monitor.render(kind, profile, matchers=matchers),
        kind=kind,
        warnings=fit.cautions(profile, []),
    )


def _checked(edit: Edit, options: ApplyOptions) -> Edit:
    """Return the edit, refused where --check finds that there is one."""
    if edit.refused is not None or not options.check or edit.new == edit.old:
        return edit
    cure = "tuner apply without --check writes it."
    return replace(edit, refused=GateError(f"{edit.path}: is not as the profile has it", hint=cure))


# Show


def _summary(
    edit: Edit, profile: ServingProfile, changes: Sequence[Mapping[str, Any]], copy: Path | None
) -> str:
    """Return what was written, line by line; ``copy`` is the backup."""
    path = printable(str(edit.path))
    if edit.new == edit.old:
        return f"{path}: nothing to change, max_num_seqs is {profile.decision.max_num_seqs}"
    lines = [f"{path}: {'written' if edit.old is None else 'changed'}"]
    for change in changes:
        before, after = _shown(change["before"]), _shown(change["after"])
        lines.append(f"  {change['argument']}: {before} -> {after}")
    lines += [f"  because {printable(reason)}" for reason in edit.reasons]
    lines += [] if copy is None else [f"backup: {printable(str(copy))}"]
    of_unit = edit.path.parent if edit.path.suffix == ".conf" else edit.path  # of a drop-in
    file, unit = _for_shell(str(edit.path)), _for_shell(of_unit.stem)
    word, kinds = ("start", KINDS) if edit.kind in KINDS else ("next", monitor.KINDS)
    command = kinds[edit.kind][word].replace("{file}", file).replace("{unit}", unit)
    return "\n".join([*lines, f"{word}: {command}", f"undo: tuner apply --rollback {file}"])


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
