"""The seam of generated files: each made whole from a profile, to watch a server. Types only.

``rollout.targets`` edits files that others wrote; these are tuner's own from the first byte on.
"""

from typing import Protocol

from tuner.profile.schema import ServingProfile


class Generated(Protocol):
    """One kind of file. Pure: a profile in, text out."""

    NAME: str
    """As in ``--to``."""

    DEFAULT_FILE: str
    """Written when no file is named."""

    SUFFIXES: tuple[str, ...]
    """What the file's name must end in."""

    NEXT: str
    """What to do with it: ``{file}`` is its name."""

    def render(self, profile: ServingProfile, *, matchers: str) -> str:
        """Return the file's text, sealed; ``matchers`` select the servers in PromQL."""
        ...
