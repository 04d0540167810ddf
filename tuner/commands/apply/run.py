"""``tuner apply``: check the command line, plan, and write."""

from tuner.commands.apply import view
from tuner.commands.apply.options import ApplyOptions
from tuner.commands.apply.plan import given, plan
from tuner.errors import GateError, UsageError
from tuner.rollout import backup
from tuner.system import files


def run(options: ApplyOptions) -> None:
    """Plan the edit and write it. Raises ProfileError, TargetError, GateError or UndecidedError;
    nothing is then half-written."""
    _check_usage(options)
    if options.rollback is not None:
        outcome = backup.roll_back(options.rollback, force=options.force)
        view.show_rollback(options.rollback, outcome, as_json=options.json)
        return
    edit = plan(options)
    if options.dry_run or edit.refused is not None:
        view.show_dry_run(edit, as_json=options.json)
        if edit.refused is not None:
            raise edit.refused
        return
    copy = None
    if edit.is_needed:
        if options.check:
            raise GateError(
                f"{edit.path}: is not as the profile has it",
                hint="tuner apply without --check writes it; --dry-run shows the change.",
            )
        real = files.resolve(edit.path)
        if real.exists() and (others := real.stat().st_nlink - 1):
            view.warn(f"hard links to the old content of {edit.path} remain: {others}")
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
    view.show(edit, copy, as_json=options.json)


def _check_usage(options: ApplyOptions) -> None:
    modes = given(options, "rollback dry_run check")
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(modes)} exclude each other", hint="Use one at a time.")
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
