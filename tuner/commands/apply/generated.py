"""Files that are tuner's own as a whole, rules and dashboards, as ``tuner apply`` writes them."""

from pathlib import Path

from tuner.commands.apply.options import ApplyOptions
from tuner.commands.apply.reading import read_text
from tuner.commands.apply.view import Edit
from tuner.errors import TargetError, UsageError
from tuner.profile.schema import ServingProfile
from tuner.rollout.backup import Override
from tuner.rollout.monitoring import seal
from tuner.rollout.monitoring.promql import selector
from tuner.rollout.monitoring.seam import Generated


def plan(
    chosen: ServingProfile,
    kind: Generated,
    options: ApplyOptions,
    *,
    warnings: tuple[str, ...],
    override: Override | None,
) -> Edit:
    """Return the edit. Raises UsageError, and TargetError for a file that is somebody else's."""
    _check_usage(kind, options)
    matchers = "" if options.selector is None else selector(options.selector)
    path = options.output or options.file or Path(kind.DEFAULT_FILE)
    if path.suffix not in kind.SUFFIXES:
        raise TargetError(
            f"{path}: a file for {kind.NAME} must end in {' or '.join(kind.SUFFIXES)}",
            hint="Rename it, or name another file.",
        )
    present = read_text(path)
    if present is not None:
        seal.check_replaceable(present, kind.NAME, source=str(path), force=options.force)
    return Edit(
        path=path,
        read_from=None if present is None else path,
        old=present or "",
        new=kind.render(chosen, matchers=matchers),
        was=None if present is None else present.encode(),
        profile=chosen.digest,
        max_num_seqs=chosen.decision.max_num_seqs,
        before={},
        after={},
        warnings=warnings,
        reasons=(),
        kind=kind.NAME,
        next=f"next: {kind.NEXT}",
        undo="",
        override=override,
    )


def _check_usage(kind: Generated, options: ApplyOptions) -> None:
    of_servers = {
        "--at": options.at,
        "--container": options.container,
        "--model-is": options.model_is,
        "--canary": options.canary is not None,
        "--exec": options.exec,
        "--live-knob": options.live_knob,
        "--admission-limits": options.admission_limits,
    }
    for name, given in of_servers.items():
        if given:
            raise UsageError(
                f"{name} and {kind.NAME} exclude each other",
                hint=f"{name} is of a server's own file; {kind.NAME} only watches it.",
            )
    if options.file is not None and options.output is not None:
        raise UsageError(
            f"-o and FILE exclude each other: {kind.NAME} is written whole",
            hint=f"tuner apply PROFILE --to {kind.NAME} {options.output}",
        )
