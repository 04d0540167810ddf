"""``tuner diff``, and its output."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from tuner.commands.apply.plan import is_profile, read_text, target_of, with_flags
from tuner.commands.apply.view import shown_value
from tuner.commands.diff.options import DiffOptions
from tuner.commands.shared.output import print_json
from tuner.errors import ByHandError, GateError, TargetError, UsageError
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.rollout import difference
from tuner.rollout.difference import Difference
from tuner.rollout.find import chosen
from tuner.system.printable import printable


def run(options: DiffOptions) -> None:
    """Print the differences. Raises ProfileError, TargetError, UsageError, and GateError when asked
    to check."""
    if (options.other is None) == (options.url is None):
        raise UsageError(
            "one thing to compare with: a file or --url",
            hint=f"tuner diff {options.profile} OTHER, or tuner diff {options.profile} --url URL",
        )
    one = profile.load(options.profile)
    untold: list[str] = []
    if options.url is not None:
        from tuner.live import server as live_server  # noqa: PLC0415 - slow to load

        name = options.url
        server = live_server.ask(name)
        found = difference.of_server(
            one, server.arguments, server.version, source=name, served=server.served
        )
        untold = difference.untold(one, server.arguments, served=server.served)
    else:
        assert options.other is not None
        name = str(options.other)
        found = _differences(one, options.other, options)
    if options.json:
        document = {
            "profile": str(options.profile),
            "other": name,
            "same": not found,
            "differences": [asdict(each) for each in found],
            "untold": untold,
        }
        print_json(document)
    else:
        sys.stdout.write(_table(found, str(options.profile), name, untold))
    if options.check and found:
        raise GateError(
            f"{name}: differs from {options.profile} in {len(found)} "
            f"{'thing' if len(found) == 1 else 'things'}",
            hint="tuner apply writes the profile into what is deployed.",
        )


def _differences(one: ServingProfile, other: Path, options: DiffOptions) -> list[Difference]:
    text, source = read_text(other), str(other)
    if text is None:
        raise TargetError(f"{other}: no such file", hint="Check the path.")
    if options.to is None and is_profile(text):
        return difference.of_profiles(one, profile.parse(text, source=source))
    target = target_of(options.to, other, text, options.at or "")
    try:
        server = chosen(
            target.read(text), target.what, name=options.container, at=target.at, is_trusted=False
        )
    except ByHandError as problem:
        raise with_flags(problem, one) from None
    return difference.of_deployment(one, target.deployment(server))


def _table(found: Sequence[Difference], one: str, other: str, untold: Sequence[str]) -> str:
    told = f"what the server does not tell: {printable(', '.join(untold))}\n" if untold else ""
    if not found:
        return f"no difference{' in what the server tells' if untold else ''}\n{told}"
    lines: list[tuple[tuple[str, str, str], str]] = [(("", printable(one), printable(other)), "")]
    for section, members in groupby(found, key=lambda each: each.section):
        lines.append(((section, "", ""), ""))
        lines += [
            (
                (
                    f"  {printable(each.name)}",
                    shown_value(each.profile, unset="-"),
                    shown_value(each.other, unset="-"),
                ),
                printable(each.evidence),
            )
            for each in members
        ]
    widths = [max(len(row[column]) for row, _ in lines) for column in range(3)]
    shown = []
    for row, evidence in lines:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        shown.append("  ".join([*cells, evidence]).rstrip())
    return "\n".join(shown) + f"\n{told}"
