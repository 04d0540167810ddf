"""Runs ``tuner resume``: the options come from the run's journal, which may be a stranger's."""

from typing import Any

from tuner.commands import root
from tuner.commands.options import ResumeOptions
from tuner.commands.shared.next_step import command
from tuner.commands.shared.run_folder import read_run
from tuner.engines.arguments import not_allowed
from tuner.engines.engine_arguments import engine_arguments
from tuner.errors import ProfileError, RunError

RESUMED = ("sweep", "refine", "compare", "verify")


def run(options: ResumeOptions) -> None:
    """Continue the run. Raises TunerError."""
    words = [*read_run(options.run_dir).planned.command, f"--run-dir={options.run_dir}"]
    if words[0] not in RESUMED or not "".join(words).isprintable():
        raise RunError(
            f"{options.run_dir}/journal.jsonl:1: command: cannot be resumed",
            hint="Give the folder of a run as tuner wrote it.",
        )
    if options.budget is not None:
        words.append(f"--budget={options.budget}")
    again = root.parsed(words)
    if risks := _risks(words[0], again):
        raise ProfileError(
            f"{options.run_dir}: {', '.join(risks)}: may load code, open files or addresses, or "
            "send data, and whoever made the run wrote it",
            hint=f"If you trust it, run the same: {command(*words)}",
        )
    root.run(words[0], again)


def _risks(name: str, options: Any) -> list[str]:  # noqa: ANN401 - of any command in RESUMED
    """Return what only a user may ask for, and a stranger's journal does."""
    risks = [f"--{name}" for name in ("ray", "storage", "url") if getattr(options, name, None)]
    if name in {"refine", "verify"}:
        return risks + ["--trust"] * options.trust
    if options.world is None:
        arguments = engine_arguments(
            model=getattr(options, "model", None),
            base=options.base,
            header_model="tuner:tiny",
            overrides=options.overrides,
        )
        risks += not_allowed(arguments)
    return risks
