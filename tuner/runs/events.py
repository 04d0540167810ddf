"""The events of a run: what is written down, in order, the moment it exists. Pure.

Each is one line of JSON that ``event`` names. What is written is what is read: a field that is
missing, unknown or of another type makes the line no event.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.engines.seam import ArgumentValue, EngineFacts
from tuner.replay.records import ProbeResult
from tuner.traffic.window import Window

FORMAT = 3
"""Of a run; another format is refused."""

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, where it is not the starter's own."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", forbid_unknown_fields=True
):
    at_s: float | None = None
    """When it was written, on the event loop's clock."""


class Planned(Event, frozen=True, tag="plan"):
    """The first event: what every measurement rests on, and the command that asked for it."""

    format: int
    plan: dict[str, Any]
    command: tuple[str, ...] = ()
    is_part: bool = False
    """Whether it is a part of the run in the folder above."""


class TraceKept(Event, frozen=True, tag="trace"):
    digest: str


class BudgetRaised(Event, frozen=True, tag="raised"):
    budget: str
    command: tuple[str, ...] = ()


class EngineStart(Event, frozen=True, tag="start"):
    """An engine was started: for what, at which size, and what it reported of itself."""

    purpose: str
    max_num_seqs: int
    facts: EngineFacts
    key: str = ""
    """What trials must have in common to share it."""


class Probed(Event, frozen=True, tag="probe"):
    """What an idle engine of this purpose does, request by request."""

    purpose: str
    results: tuple[ProbeResult, ...]
    flaws: tuple[str, ...] = ()
    elapsed_s: float = 0.0


class Selection(Event, frozen=True, tag="choice"):
    """The part of the trace, and the windows of it that a step replays."""

    part: Window
    windows: tuple[Window, ...]
    step_s: float


class TrialBegun(Event, frozen=True, tag="trial"):
    purpose: str
    max_num_seqs: int
    configuration: Configuration = {}
    window: Window | None = None
    """None of a ramp."""

    approach: str = ""
    load: str = ""
    """Of a comparison: the way of serving, and the traffic."""


class Replayed(Event, frozen=True, tag="replay"):
    """A replay or a ramp, and the file that holds it."""

    file: str
    purpose: str
    max_num_seqs: int
    elapsed_s: float
    trial: int = 0
    """How many trials had ended before."""


class TrialEnded(Event, frozen=True, tag="measured"):
    failed: str | None = None
    """Why it could not be measured."""

    hint: str = ""


class Gathered(Event, frozen=True, tag="gathered"):
    """The search has ended: nothing more is measured before what confirms it."""

    complete: bool
    """Whether nothing but itself ended it."""

    chosen: Configuration = {}
    pairs: tuple[Window, ...] = ()
    """The windows in which the chosen configuration is compared with the knee, pair by pair."""


class ConfirmingWindow(Event, frozen=True, tag="confirming"):
    """The window that the confirming engine replays at the recorded load."""

    max_num_seqs: int
    window: Window
    unseen: bool
    """Whether the ladder did not replay it."""


class Repeated(Event, frozen=True, tag="late"):
    """Something was measured once more, why, and what it had taken."""

    what: str
    why: str
    elapsed_s: float


AnyEvent = (
    Planned | TraceKept | BudgetRaised | EngineStart | Probed | Selection | TrialBegun | Replayed
    | TrialEnded | Gathered | ConfirmingWindow | Repeated
)  # fmt: skip
