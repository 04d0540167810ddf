"""The output of ``tuner apply``."""

import difflib
import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tuner.engines.arguments import ArgumentValue
from tuner.errors import TunerError
from tuner.rollout import backup
from tuner.rollout.backup import Override, RolledBack
from tuner.system import files

_LONGEST = 60
"""Of a value that is shown."""


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of one file, and what that changes."""

    path: Path
    read_from: Path | None
    """None: the file is new."""

    old: str
    new: str
    was: bytes | None
    """What is at ``path`` now; None: nothing."""

    profile: str
    """Digest of the profile."""

    max_num_seqs: int
    before: Mapping[str, ArgumentValue]
    """The engine arguments that the file stated."""

    after: Mapping[str, ArgumentValue]
    warnings: tuple[str, ...]
    reasons: tuple[str, ...]
    """Where values come from that are not in the profile."""

    kind: str
    """Of the file, as in ``--to``."""

    next: str
    """What to do with the file, with ``{file}`` for its name."""

    override: Override | None
    """What speaks against it, and who wrote it all the same."""

    refused: TunerError | None = None
    """Why it is not written, be it without ``--force`` or at all."""

    @property
    def is_needed(self) -> bool:
        return self.was != self.new.encode()

    @property
    def changes(self) -> list[dict[str, Any]]:
        return [
            {"argument": name, "before": self.before.get(name), "after": self.after.get(name)}
            for name in {**self.after, **self.before}
            if self.before.get(name) != self.after.get(name)
        ]


def show(edit: Edit, copy: Path | None, *, as_json: bool, to_stderr: bool) -> None:
    """Print what was written; ``copy`` is the backup."""
    if as_json:
        _print_json(edit, dry_run=False, copy=copy)
        return
    _warn(edit)
    say = sys.stderr.write if to_stderr else _print
    name = _for_shell(str(edit.path))
    if not edit.is_needed:
        say(f"{visible(edit.path)}: nothing to change, max_num_seqs is {edit.max_num_seqs}\n")
        return
    say(f"{visible(edit.path)}: {'written' if edit.was is None else 'changed'}\n")
    for change in edit.changes:
        before, after = shown_value(change["before"]), shown_value(change["after"])
        say(f"  {change['argument']}: {before} -> {after}\n")
    for reason in edit.reasons:
        say(f"  because {_escaped(reason)}\n")
    if copy is not None:
        say(f"backup: {visible(copy)}\n")
    if edit.override is not None:
        beside = files.resolve(edit.path) if edit.path.is_symlink() else edit.path
        say(f"override: on record in {visible(backup.record_of(beside))}\n")
    if not to_stderr:
        say(f"{_command(edit.next, edit.path)}\nundo: tuner apply --rollback {name}\n")


def _command(text: str, path: Path) -> str:
    unit = path.parent.name.removesuffix(".d") if path.suffix == ".conf" else f"{path.stem}.service"
    for name, value in (("file", path), ("path", path if "/" in str(path) else f"./{path}")):
        text = text.replace(f"{{{name}}}", _for_shell(str(value)))
    return _escaped(text.replace("{unit}", _for_shell(unit)))


def visible(path: Path) -> str:
    """Return a file's name on one line, with nothing in it that moves the cursor or hides."""
    return _escaped(str(path))


def _for_shell(name: str) -> str:
    """Return the word that a shell, such as bash, takes for the name."""
    if not any(map(_is_hidden, name)):
        return shlex.quote(name)
    return "$'" + _escaped(re.sub(r"(['\\])", r"\\\1", name)) + "'"


def _is_hidden(character: str) -> bool:
    """Whether a character acts on what shows it, or changes what is seen of the others; a byte that
    is no text does neither."""
    return not character.isprintable() and not "\udc80" <= character <= "\udcff"


def _escaped(text: str) -> str:
    """Spell what is hidden as a shell does, byte by byte."""
    return "".join(
        "".join(f"\\x{byte:02x}" for byte in c.encode()) if _is_hidden(c) else c for c in text
    )


def show_dry_run(edit: Edit, *, as_json: bool) -> None:
    """Print the change that ``patch`` would take; nothing for no change."""
    if as_json:
        _print_json(edit, dry_run=True, copy=None)
        return
    _warn(edit)
    _print(shown_diff(diff(edit)) if sys.stdout.isatty() else diff(edit))
    if not edit.is_needed:
        sys.stderr.write(f"{visible(edit.path)}: nothing to change\n")


def show_rollback(path: Path, outcome: RolledBack, *, as_json: bool) -> None:
    if as_json:
        _print(json.dumps({"file": str(path), "status": outcome}) + "\n")
        return
    words = {
        "restored": "restored as it was before the last apply",
        "removed": "removed; there was no such file before the last apply",
        "unchanged": "already as it was before the last apply",
    }
    _print(f"{visible(path)}: {words[outcome]}\n")


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
    return "\n".join(
        "\t".join(_escaped(part) for part in line.split("\t")) for line in text.split("\n")
    )


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
        "max_num_seqs": edit.max_num_seqs,
        "changes": edit.changes,
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


def _warn(edit: Edit) -> None:
    for warning in edit.warnings:
        warn(warning)


def warn(warning: str) -> None:
    """Print a warning. It may quote what a file holds: nothing of that moves the cursor or adds a
    line."""
    sys.stderr.write(f"Warning: {_escaped(warning)}\n")


def shown_value(value: ArgumentValue, *, unset: str = "unset") -> str:
    """Return a value as JSON, cut to _LONGEST. It is ASCII, so nothing in a file can move the
    cursor or fill the terminal."""
    text = unset if value is None else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
