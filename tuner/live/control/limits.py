"""The values that a running scheduler's limits can be set to."""

from typing import Protocol

from tuner.engines.server.cap_schedule import CapSchedule
from tuner.engines.server.protocol import Limits, Log, Refused


class Knobs(Protocol):
    """The limits that a scheduler offers; any thread may ask."""

    @property
    def built(self) -> Limits:
        """Return the limits that it was built for."""
        ...

    @property
    def least_tokens(self) -> int:
        """The smallest max_num_batched_tokens with which every request can be served."""
        ...

    def limits(self) -> Limits: ...

    def load(self) -> tuple[int, int, int]:
        """Return how many requests run, how many wait, and how many iterations are under way."""
        ...

    def set_limits(self, limits: Limits, *, idle: bool = False) -> None:
        """Set them between two iterations; with ``idle`` only while nothing runs or waits.

        Raises Refused when that is not so, or the engine does not come to one in time.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix.

        Raises Refused while something runs or waits, and when blocks are still in use.
        """
        ...

    def take_log(self, *, go_on: bool) -> Log:
        """See ``protocol.TakeLog``."""
        ...


def checked(knobs: Knobs, seqs: int, tokens: int | None) -> Limits:
    """Return the limits that are meant; None leaves the tokens as they are.

    Raises Refused for limits that the server cannot have.
    """
    built, least = knobs.built, knobs.least_tokens
    tokens = knobs.limits().max_num_batched_tokens if tokens is None else tokens
    for name, wanted, most in (
        ("max_num_seqs", seqs, built.max_num_seqs),
        ("max_num_batched_tokens", tokens, built.max_num_batched_tokens),
    ):
        if wanted > most:
            raise Refused(
                f"{name} {wanted} is more than the {most} that the server was built for",
                hint=f"Start the server with {name} {wanted} or more.",
            )
    if tokens < max(seqs, least):
        needs = "this model" if least > seqs else f"max_num_seqs {seqs}"
        raise Refused(
            f"max_num_batched_tokens {tokens} is less than the {max(seqs, least)} that {needs} "
            "needs",
            hint="Leave max_num_batched_tokens as it is.",
        )
    return Limits(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def check_schedule(knobs: Knobs, schedule: CapSchedule) -> None:
    """Refuse a schedule with a cap that the server cannot have. Raises Refused."""
    for cap in schedule.caps:
        checked(knobs, cap.max_num_seqs, cap.max_num_batched_tokens)
