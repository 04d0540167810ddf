"""Runs ``tuner show``: prints a profile for people, or its flags for a shell."""

import shlex
import sys

from tuner.commands.shared.console import console_for, print_block, print_warnings, shown
from tuner.commands.shared.next_step import after, command
from tuner.commands.show.options import ShowOptions
from tuner.profile.profile import load
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import block_of, facts_of
from tuner.rollout import fit


def run(options: ShowOptions) -> None:
    """Print a profile for people, or its flags for a shell. Raises ProfileError, TargetError."""
    profile = load(options.profile)
    if options.flags:
        fit.check_visible(profile)
        sys.stdout.write(f"{shlex.join(fit.to_paste(profile, pin=True))}\n")
        return
    console = console_for()
    print_block(console, block_of(profile, next_=_next(profile, options)))
    for line in facts_of(profile):
        console.print(shown(line), soft_wrap=True)
    if options.details:
        console.print()
        console.print(shown(profile.decision.reason))
        for reason in profile.validity.retune_when:
            console.print(f"tune again when {shown(reason)}")
        print_warnings(console, profile.provenance.warnings, all_=True)


def _next(profile: ServingProfile, options: ShowOptions) -> str:
    """Return what to do; where that would be to look at the profile, its pictures."""
    step, path = after(profile, options.profile), options.profile
    return command("report", path) if step == command("show", path) else step
