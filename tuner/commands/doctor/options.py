"""``tuner doctor``: its options."""

from dataclasses import dataclass

from tuner.commands.shared.options import Json


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DoctorOptions:
    """Check that this machine and its vLLM can be measured on, a line for each check.

    PASS, FAIL with its cure, or SKIP with its reason. Exits with 6 when one fails.
    """

    json: Json = False
