"""Everything tuner raises on purpose; ``cli.main`` alone turns it into a message and an exit code.

TunerError
├── UsageError        2   options that contradict each other
├── InputError        3   a file written by others cannot be used
│   ├── TraceError        the trace
│   ├── ProfileError      the serving profile
│   ├── TargetError       the file to write into
│   │   └── ByHandError   shows no server of vLLM's, or one that is not edited
│   ├── RunError          the run directory
│   └── AnswerTooLongError    what a server answers is larger than is read
├── EngineError       4   the engine refused, failed or died
│   └── StoodStillError       it lives and does nothing
├── UndecidedError    5   no decision can be defended
├── GateError         6   a check failed
└── Interrupted     130   the user stopped the run
"""

from typing import ClassVar


class TunerError(Exception):
    """A failure to explain to the user: what happened and where, and what to try next.

    Message and hint are one line each: the message names the place (``file:line``, key), the hint
    is the cure.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(TunerError):
    """Options that contradict each other, or a value outside an option's range."""

    exit_code = 2


class InputError(TunerError):
    """A file that somebody else wrote cannot be used."""

    exit_code = 3


class TraceError(InputError):
    """The trace cannot be used."""


class ProfileError(InputError):
    """The serving profile cannot be used."""


class TargetError(InputError):
    """The file to write into cannot be used, or must not be written."""


class ByHandError(TargetError):
    """The file shows no server of vLLM's, or one that is not edited: the flags are to be pasted."""


class RunError(InputError):
    """The run directory cannot be used."""


class AnswerTooLongError(InputError):
    """A server's answer is larger than is read: a smaller request may do."""


class EngineError(TunerError):
    """The engine refused its arguments, failed to start, or died."""

    exit_code = 4


class StoodStillError(EngineError):
    """The engine lives, has work, and did nothing for ``seconds``."""

    def __init__(self, message: str, *, hint: str, seconds: float) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class UndecidedError(TunerError):
    """The measurements do not support a decision."""

    exit_code = 5


class GateError(TunerError):
    """A check that the user asked for failed."""

    exit_code = 6


class Interrupted(TunerError):
    """The user stopped the run; what was measured is on disk."""

    exit_code = 130
