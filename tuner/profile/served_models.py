"""The models that a running server serves, and whether a profile's is one of them. Pure."""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct, field

from tuner.engines.models import shipped as models
from tuner.profile.profile import ServingProfile

MOST, LONGEST = 1000, 300
"""Models that are read, and characters of a name: a server may say anything."""

_HUB_FOLDER = re.compile(r"(?:^|/)models--([^/]+)/snapshots/")
"""Folder in which huggingface_hub keeps what it has fetched; a server without network names it."""


class ServedModel(Struct, frozen=True):
    """A model as a server calls it: a card of ``/v1/models``."""

    name: str = field(name="id")
    """What requests ask for: ``--served-model-name``, or else what ``root`` is."""
    root: str | None = None
    """``--model``: a repository or a folder. None where only names are known (``/metrics``)."""
    max_model_len: int | None = None
    parent: str | None = None
    """Of an adapter."""

    @property
    def repository(self) -> str | None:
        """What was fetched from a hub; None for a folder, and where only a name is known."""
        root = self.root or "."
        if (kept := _HUB_FOLDER.search(root)) is not None:
            return kept[1].replace("--", "/")
        return None if root.startswith((".", "/", "~")) or "://" in root else root


class ModelMismatch(Struct, frozen=True):
    """The server serves another model than the profile's, as far as it tells."""

    profile: str
    served: str
    why: str
    """What that rests on."""
    is_sure: bool
    """Whether the server was started with another repository. A folder may hold the same model as
    one of another name, and a name may be given to any: that is a doubt."""

    @property
    def words(self) -> str:
        return f"model {self.served} and not {self.profile} ({self.why})"


def model_mismatch(profile: ServingProfile, served: Sequence[ServedModel]) -> ModelMismatch | None:
    """Return in what a server's models differ from the profile's. None where one of them is the
    profile's, and where nothing is known.

    What a server was started with counts; where that is a folder or not known, the name that it
    gives the model counts too.
    """
    ours = {profile.model, models.model_path(profile.model), profile.provenance.model}
    given = profile.engine.get("served_model_name")
    names = ours.union(given if isinstance(given, list) else [given])
    for each in served:
        known = each.repository
        if each.root in ours or (each.name in names if known is None else known in ours):
            return None
    if not served:
        return None
    called = ", ".join(dict.fromkeys(each.name for each in served))[:LONGEST]
    roots = ", ".join(dict.fromkeys(each.root or each.name for each in served))[:LONGEST]
    is_sure = all(each.repository is not None for each in served)
    return ModelMismatch(profile.model, roots, f"served as {called}", is_sure)


class _Models(Struct):
    data: list[ServedModel]


def listed(text: str) -> tuple[ServedModel, ...]:
    """Return what an answer of ``/v1/models`` lists, adapters left out; empty for no such answer.

    A server lists a model once for each of its names.
    """
    try:
        cards = msgspec.json.decode(text, type=_Models).data[:MOST]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
    return tuple(card for card in cards if card.name and card.parent is None)
