"""The output of ``tuner apply --live``."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.commands.shared.output import print_json
from tuner.engines.server.cap_schedule import CapAt, turn_at
from tuner.engines.server.protocol import (
    Change,
    ClearSchedule,
    Limits,
    RollBack,
    SetLimits,
    SetSchedule,
    State,
)
from tuner.system.printable import printable

_STATUS = {True: "changed", False: "unchanged", None: "unknown"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A server's limits before and after."""

    socket: Path
    before: Limits
    state: State
    changed: bool | None
    """None: only the server knows, which alone remembers what held before."""

    asked: Change | None = None
    """What would be asked, in a dry run."""


def would(socket: Path, state: State, request: Change) -> Outcome:
    """Return the limits that a change would make, as far as that can be said without asking for
    it."""
    cap: SetLimits | CapAt | None = request if isinstance(request, SetLimits) else None
    if isinstance(request, SetSchedule):
        cap = turn_at(request.schedule, datetime.now(UTC)).cap
    limits, schedule = state.limits, state.schedule
    if isinstance(request, RollBack):
        return Outcome(socket, state.limits, state, None, request)
    if isinstance(request, SetSchedule):
        schedule = request.schedule
    if isinstance(request, ClearSchedule):
        schedule = None
    if cap is not None:
        tokens = cap.max_num_batched_tokens or limits.max_num_batched_tokens
        limits = Limits(max_num_seqs=cap.max_num_seqs, max_num_batched_tokens=tokens)
    ahead = state.next if schedule == state.schedule else None  # what follows a new one
    after = state.model_copy(update={"limits": limits, "schedule": schedule, "next": ahead})
    changed = (limits, schedule) != (state.limits, state.schedule)
    return Outcome(socket, state.limits, after, changed, request)


def show(
    outcomes: Sequence[Outcome], warnings: Sequence[str], *, dry_run: bool, as_json: bool
) -> None:
    for warning in warnings:
        sys.stderr.write(f"Warning: {printable(warning)}\n")
    if as_json:
        servers = [
            {
                **_document(one.socket, one.state),
                "status": _STATUS[one.changed],
                "before": one.before.model_dump(),
                **({} if one.asked is None else {"ask": one.asked.model_dump(mode="json")}),
            }
            for one in outcomes
        ]
        document = {"dry_run": dry_run, "servers": servers, "warnings": list(warnings)}
        print_json(document)
        return
    for one in outcomes:
        sys.stdout.write(_change_lines(one, dry_run=dry_run))


def show_undo(outcomes: Sequence[Outcome]) -> None:
    """Print the command that takes the change back, of those servers that did change."""
    changed = [one for one in outcomes if one.changed]
    if changed:
        first, *others = dict.fromkeys(_first_rank(one) for one in changed)
        words = [f"--rollback {first}", *(f"--socket {other}" for other in others)]
        sys.stdout.write(f"undo: tuner apply --live {' '.join(words)}\n")


def show_states(servers: Sequence[tuple[Path, State]], *, as_json: bool) -> None:
    if as_json:
        document = {"servers": [_document(socket, state) for socket, state in servers]}
        print_json(document)
        return
    for socket, state in servers:
        limits, built = state.limits, state.built
        sys.stdout.write(
            f"{_name(socket)}: max_num_seqs {limits.max_num_seqs} of {built.max_num_seqs}, "
            f"max_num_batched_tokens {limits.max_num_batched_tokens} of "
            f"{built.max_num_batched_tokens}; {_load(state)}\n"
            f"{_schedule_line(state)}"
            f"  audit: {printable(state.audit)}\n"
        )
        if state.problem:
            sys.stderr.write(f"Warning: {_name(socket)}: {printable(state.problem)}\n")


def _change_lines(one: Outcome, *, dry_run: bool) -> str:
    name, old, new = _name(one.socket), one.before, one.state.limits
    if one.changed is None:
        return (
            f"{name}: would be asked to take back its last change (dry run); now max_num_seqs "
            f"{new.max_num_seqs}, before that change only the server knows\n"
        )
    if not one.changed:
        return f"{name}: nothing to change, max_num_seqs is {new.max_num_seqs}\n"
    moved = [f"max_num_seqs {old.max_num_seqs} -> {new.max_num_seqs}"]
    if old == new:
        moved = [f"max_num_seqs stays {new.max_num_seqs}"]
    if old.max_num_batched_tokens != new.max_num_batched_tokens:
        moved.append(
            f"max_num_batched_tokens {old.max_num_batched_tokens} -> {new.max_num_batched_tokens}"
        )
    text = f"{name}: {', '.join(moved)}{' (dry run)' if dry_run else ''}; {_load(one.state)}\n"
    above = one.state.running - new.max_num_seqs
    if above > 0:
        text += f"  {above} of the running finish before another one begins\n"
    if isinstance(one.asked, ClearSchedule):
        text += "  by day: no more\n"
    return text + _schedule_line(one.state)


def _schedule_line(state: State) -> str:
    if state.schedule is None:
        return ""
    caps = ", ".join(f"{cap.at} {cap.max_num_seqs}" for cap in state.schedule.caps)
    ahead = "" if state.next is None else f"; {state.next.max_num_seqs} from {state.next.begins}"
    return printable(f"  by day ({state.schedule.zone}): {caps}{ahead}") + "\n"


def _load(state: State) -> str:
    return f"{state.running} running, {state.waiting} waiting"


def _document(socket: Path, state: State) -> dict[str, Any]:
    return {"socket": str(socket), **state.model_dump()}


def _first_rank(one: Outcome) -> str:
    """Return the name that stands for all ranks of a server."""
    rank = one.state.about.rank
    name = one.socket.name.removesuffix(f".dp{rank}") if rank else one.socket.name
    return shlex.quote(str(one.socket.with_name(name)))


def _name(socket: Path) -> str:
    return printable(str(socket))
