"""The control of a running server's limits: what may be asked, what is done, and what is on record.

Runs on a thread of its own inside EngineCore. It never waits for the engine while it holds
something that the engine needs, and needs nothing of vLLM but what ``Knobs`` says.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from tuner.engines.server.cap_schedule import CapSchedule, ScheduledCap, next_turn, turn_at
from tuner.engines.server.peer import Peer
from tuner.engines.server.protocol import (
    About,
    Ahead,
    Answer,
    AskState,
    Change,
    ClearSchedule,
    Limits,
    PutBack,
    Refused,
    ResetPrefixCache,
    RollBack,
    SetLimits,
    SetSchedule,
    State,
    TakeLog,
    line_of,
    parse,
    strict_json,
)
from tuner.errors import TunerError
from tuner.live.control import socket_files
from tuner.live.control.limits import Knobs, check_schedule, checked
from tuner.live.control.record import LiveRecord, log
from tuner.live.control.socket_files import Place

MOST_UNDONE = 100
"""Changes that can be rolled back."""

LOOK_S = 15.0
"""Seconds between two looks at the clock while a schedule holds: the clock may be set meanwhile."""

_IDLE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Position:
    """All that a change changes."""

    limits: Limits
    schedule: CapSchedule | None
    turn: ScheduledCap | None
    """The last one that was made, or that was found when the schedule came."""


@dataclass(frozen=True, slots=True)
class _Done:
    was: _Position
    new: _Position


class LiveControl:
    """The control of one scheduler. Not for several threads: whoever runs the listener calls
    ``answer`` and ``tick``."""

    def __init__(
        self,
        knobs: Knobs,
        at: Place,
        about: About,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._knobs = knobs
        self._at = at
        self._about = about
        self._now = now
        self._record = LiveRecord(at, about, now)
        self._schedule: CapSchedule | None = None
        self._turn: ScheduledCap | None = None
        self._undo: tuple[_Done, ...] = ()
        self._last: tuple[str | None, _Done, tuple[_Done, ...]] | None = None
        """The latest change of somebody's with its name, and what could be rolled back before."""

        self._start = secrets.token_hex(8)
        self._changes = 0
        self._problem: str | None = None

    def open(self) -> None:
        """Take up the schedule that was kept and put the start on record. Raises TunerError."""
        limits, schedule = self._knobs.limits(), self._kept()
        why = "the server was started"
        self._record.write("started", limits, limits, reason=why, schedule=schedule)
        self._schedule = schedule

    def _kept(self) -> CapSchedule | None:
        kept = socket_files.load_schedule(self._at)
        if kept is None:
            return None
        try:
            schedule = CapSchedule.model_validate(strict_json(kept))
            check_schedule(self._knobs, schedule)
        except (Refused, ValidationError) as problem:
            self._fail(f"{self._at.schedule}: not taken up: {str(problem).splitlines()[0]}")
            return None
        return schedule

    def refuse(self, peer: Peer) -> None:
        log.warning("tuner: live control: pid %d of user %d turned away", peer.pid, peer.uid)

    def answer(self, line: bytes, peer: Peer) -> bytes:
        """Do what a line asks for and return the line that says how it went. Never raises.

        Nothing is changed for a peer that has left: it takes that for not done.
        """
        before = self._knobs.limits()
        try:
            request = parse(line)
            if isinstance(request, AskState):
                return line_of(Answer(ok=True, state=self._state()))
            if isinstance(request, TakeLog):
                log = self._knobs.take_log(go_on=request.go_on)
                return line_of(Answer(ok=True, state=self._state(), log=log))
            if isinstance(request, ResetPrefixCache):
                self._knobs.reset_prefix_cache()
                return line_of(Answer(ok=True, state=self._state()))
            changed = self._change(request, peer)
            self._problem = None
            return line_of(Answer(ok=True, state=self._state(), before=before, changed=changed))
        except Refused as refused:
            kind, message, hint = refused.kind, str(refused), refused.hint
        except TunerError as problem:
            kind, message, hint = "failed", str(problem), problem.hint
            self._fail(message)
        return line_of(Answer(ok=False, state=self._state(), kind=kind, error=message, hint=hint))

    def tick(self) -> float:
        """Make the turn of the schedule that is due, and return how long none is, in seconds."""
        if self._schedule is None:
            return _IDLE_S
        now = self._now()
        turn = turn_at(self._schedule, now)
        if turn != self._turn:
            try:
                self._make(turn)
            except (Refused, TunerError) as problem:  # the disk, or a busy engine: tried again
                self._fail(f"{turn.cap.at} {turn.cap.max_num_seqs}: {problem}")
                return LOOK_S
        begins, _ = next_turn(self._schedule, now)
        return min(LOOK_S, max(0.01, (begins - now).total_seconds()))

    # -- changes

    @property
    def _revision(self) -> str:
        return f"{self._start}.{self._changes}"

    def _change(self, request: Change, peer: Peer) -> bool:
        if request.revision is not None and request.revision != self._revision:
            is_known = request.revision.startswith(f"{self._start}.")
            what = "server's limits have been changed" if is_known else "server has been restarted"
            raise Refused(f"the {what} meanwhile", hint="Run the command again.")
        was = self._position()
        if isinstance(request, SetLimits):
            wanted = checked(self._knobs, request.max_num_seqs, request.max_num_batched_tokens)
            new = _Position(wanted, was.schedule, was.turn)
        elif isinstance(request, SetSchedule):
            check_schedule(self._knobs, request.schedule)
            new = self._under(request.schedule)
        elif isinstance(request, ClearSchedule):
            if self._schedule is None:
                self._keep(None)  # one that was not taken up
            new = _Position(was.limits, None, None)
        else:
            new = self._undone(was, request)
        if (new.limits, new.schedule) == (was.limits, was.schedule):
            return False
        self._go(was, new, request, peer)
        done, before = _Done(was, new), self._undo
        if isinstance(request, PutBack):
            assert self._last is not None
            self._undo, self._last = self._last[2], None
            return True
        took_back = isinstance(request, RollBack)
        self._undo = before[:-1] if took_back else (*before, done)[-MOST_UNDONE:]
        self._last = (request.id, done, before)
        return True

    def _undone(self, was: _Position, request: RollBack | PutBack) -> _Position:
        done = self._undo[-1] if self._undo else None
        if isinstance(request, PutBack):
            name, done, _ = self._last or (None, None, ())
            if name != request.of:
                why = "the last change since the server was started is another one"
                raise Refused(why, hint="See what holds: tuner apply --live --socket PATH")
        if done is None:
            raise Refused(
                "there is no change to take back since the server was started",
                hint="tuner apply PROFILE --live sets other limits.",
            )
        if was != done.new:
            raise Refused(
                "the schedule has changed the limits after the change that would be taken back",
                hint="End the schedule with --clear-schedule, or apply another profile.",
            )
        return done.was  # a turn that has come due since is made at the next look at the clock

    def _under(self, schedule: CapSchedule) -> _Position:
        """Return the position that a schedule has now."""
        turn = turn_at(schedule, self._now())
        limits = checked(self._knobs, turn.cap.max_num_seqs, turn.cap.max_num_batched_tokens)
        return _Position(limits, schedule, turn)

    def _go(self, was: _Position, new: _Position, request: Change, peer: Peer) -> None:
        """Make a change: keep the schedule, put it on record, then set the limits. Nothing holds
        that is not on record.

        Raises Refused and TunerError, with the old schedule kept again.
        """
        if new.schedule != was.schedule:
            self._keep(new.schedule)
        try:
            self._record.write(
                request.do,
                was.limits,
                new.limits,
                peer=peer,
                reason=request.reason,
                override=request.override,
                profile=request.profile if isinstance(request, SetLimits) else None,
                schedule=new.schedule,
            )
            if peer.has_left():  # the disk may have taken long
                raise self._not_done(was.limits, "whoever asked had left")
            idle = isinstance(request, SetLimits) and request.idle
            self._set(was.limits, new.limits, idle=idle)
        except (Refused, TunerError):
            if new.schedule != was.schedule:
                self._keep(was.schedule)
            raise
        self._schedule, self._turn = new.schedule, new.turn
        self._changes += 1

    def _make(self, turn: ScheduledCap) -> None:
        old = self._knobs.limits()
        wanted = checked(self._knobs, turn.cap.max_num_seqs, turn.cap.max_num_batched_tokens)
        if wanted != old:
            cap = turn.cap
            self._record.write(
                "turn", old, wanted, reason=f"{cap.at} by schedule", profile=cap.profile
            )
            self._set(old, wanted)
            self._changes += 1
        self._turn, self._problem = turn, None

    def _set(self, old: Limits, new: Limits, *, idle: bool = False) -> None:
        if new == old:
            return
        try:
            self._knobs.set_limits(new, idle=idle)
        except Refused:
            self._not_done(old, "the engine was too busy")
            raise

    def _not_done(self, limits: Limits, why: str) -> Refused:
        self._record.write("not done", limits, limits, reason=f"the line before: {why}")
        return Refused(why, hint="Ask again.", kind="failed")

    # -- what is told and kept

    def _position(self) -> _Position:
        return _Position(self._knobs.limits(), self._schedule, self._turn)

    def _state(self) -> State:
        running, waiting, in_flight = self._knobs.load()
        return State(
            about=self._about,
            built=self._knobs.built,
            limits=self._knobs.limits(),
            running=running,
            waiting=waiting,
            in_flight=in_flight,
            schedule=self._schedule,
            next=self._ahead(),
            revision=self._revision,
            changes=len(self._undo),
            audit=str(self._at.audit),
            problem=self._problem,
        )

    def _ahead(self) -> Ahead | None:
        if self._schedule is None:
            return None
        begins, turn = next_turn(self._schedule, self._now())
        local = begins.astimezone(ZoneInfo(self._schedule.zone))
        return Ahead(begins=local.isoformat(), max_num_seqs=turn.cap.max_num_seqs)

    def _keep(self, schedule: CapSchedule | None) -> None:
        content = None if schedule is None else schedule.model_dump_json(indent=2).encode() + b"\n"
        socket_files.keep_schedule(self._at, content)

    def _fail(self, problem: str) -> None:
        if problem != self._problem:  # what is tried again and again is said once
            log.error("tuner: live control: %s", problem)
        self._problem = problem
