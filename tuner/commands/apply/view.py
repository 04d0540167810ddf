"""The output of ``tuner apply``."""

import difflib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from tuner.commands.apply.plan import Edit
from tuner.engines.arguments import ArgumentValue
from tuner.rollout import backup
from tuner.rollout.backup import RolledBack
from tuner.system import files
from tuner.system.printable import printable

_LONGEST = 60
"""Of a value that is shown."""


def show(edit: Edit, copy: Path | None, *, as_json: bool) -> None:
    """Print what was written; ``copy`` is the backup."""
    if as_json:
        _print_json(edit, dry_run=False, copy=copy)
        return
    warn(*edit.warnings)
    path = visible(edit.path)
    if not edit.is_needed:
        _print(f"{path}: nothing to change, max_num_seqs is {edit.of.decision.max_num_seqs}\n")
        return
    lines = [f"{path}: {'written' if edit.was is None else 'changed'}"]
    for change in changes(edit):
        before, after = shown_value(change["before"]), shown_value(change["after"])
        lines.append(f"  {change['argument']}: {before} -> {after}")
    lines += [f"  because {printable(reason)}" for reason in edit.reasons]
    if copy is not None:
        lines.append(f"backup: {visible(copy)}")
    if edit.override is not None:
        beside = files.resolve(edit.path) if edit.path.is_symlink() else edit.path
        lines.append(f"override: on record in {visible(backup.record_of(beside))}")
    lines += [
        _command(edit.next, edit.path),
        f"undo: tuner apply --rollback {_for_shell(edit.path)}",
    ]
    _print("\n".join(lines) + "\n")


def changes(edit: Edit) -> list[dict[str, Any]]:
    return [
        {"argument": name, "before": edit.before.get(name), "after": edit.after.get(name)}
        for name in {**edit.after, **edit.before}
        if edit.before.get(name) != edit.after.get(name)
    ]


def _command(text: str, path: Path) -> str:
    unit = path.parent.name.removesuffix(".d") if path.suffix == ".conf" else f"{path.stem}.service"
    text = text.replace("{file}", _for_shell(path)).replace("{unit}", _for_shell(Path(unit)))
    return text.replace("{path}", _for_shell(path if "/" in str(path) else Path(f"./{path}")))


def visible(path: Path) -> str:
    """Return a file's name on one line, with nothing in it that moves the cursor or hides."""
    return "".join(printable(c) if _is_hidden(c) else c for c in str(path))


def _is_hidden(character: str) -> bool:
    """Whether a character acts on what shows it; a byte that is no text does not."""
    return not character.isprintable() and not "\udc80" <= character <= "\udcff"


def _for_shell(path: Path) -> str:
    """Return the word that a shell, such as bash, takes for the name."""
    name = str(path)
    if not any(map(_is_hidden, name)):
        return shlex.quote(name)
    quoted = re.sub(r"(['\\])", r"\\\1", name)
    return "$'" + "".join(_in_bytes(c) if _is_hidden(c) else c for c in quoted) + "'"


def _in_bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def show_dry_run(edit: Edit, *, as_json: bool) -> None:
    """Print the change that ``patch`` would take; nothing for no change."""
    if as_json:
        _print_json(edit, dry_run=True, copy=None)
        return
    warn(*edit.warnings)
    _print(shown_diff(diff(edit)) if sys.stdout.isatty() else diff(edit))
    if not edit.is_needed:
        sys.stderr.write(f"{visible(edit.path)}: nothing to change\n")


def show_rollback(path: Path, outcome: RolledBack, *, as_json: bool) -> None:
    words = {
        "restored": "restored as it was before the last apply",
        "removed": "removed; there was no such file before the last apply",
        "unchanged": "already as it was before the last apply",
    }
    document = json.dumps({"file": str(path), "status": outcome})
    _print(f"{document if as_json else f'{visible(path)}: {words[outcome]}'}\n")


def diff(edit: Edit) -> str:
    """Return the unified diff from what is read to what is written."""
    old_name = "/dev/null" if edit.read_from is None else visible(edit.read_from)
    lines = difflib.unified_diff(
        _lines(edit.old), _lines(edit.new), fromfile=old_name, tofile=visible(edit.path)
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def shown_diff(text: str) -> str:
    """Return a diff for a terminal: nothing in the file moves the cursor or hides."""
    return "".join(c if c in "\t\n" else printable(c) for c in text)


def _lines(text: str) -> list[str]:
    """Split a text as ``patch`` does: at line feeds and nowhere else."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def _print_json(edit: Edit, *, dry_run: bool, copy: Path | None) -> None:
    status = "created" if edit.was is None else "changed" if edit.is_needed else "unchanged"
    document = {
        "file": str(edit.path),
        "kind": edit.kind,
        "status": status,
        "dry_run": dry_run,
        "max_num_seqs": edit.of.decision.max_num_seqs,
        "changes": changes(edit),
        "backup": None if copy is None else str(copy),
        "warnings": list(edit.warnings),
        "reasons": list(edit.reasons),
        "override": None if edit.override is None else msgspec.to_builtins(edit.override),
    }
    if dry_run:
        document["diff"] = diff(edit)
    _print(json.dumps(document) + "\n")


def _print(text: str) -> None:
    """Write the files' own bytes, whatever the locale is; also those of a path that is no text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


def warn(*warnings: str) -> None:
    """Print warnings, each on one line. They may quote what a file holds."""
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")


def shown_value(value: ArgumentValue) -> str:
    """Return a value as JSON, cut to _LONGEST. It is ASCII, so nothing in a file can move the
    cursor or fill the terminal."""
    text = "unset" if value is None else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
