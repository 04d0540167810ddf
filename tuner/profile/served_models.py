"""The models that a running server serves, and whether a profile's is one of them. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.engines.models import shipped as models
from tuner.profile.profile import ServingProfile

MOST, LONGEST = 1000, 300
"""Models that are read, and characters of a name: a server may say anything."""

_HUB_FOLDER = re.compile(r"(?:^|/)models--([^/]+)/snapshots/")
"""Folder in which huggingface_hub keeps what it has fetched; a server without network names it."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a server calls it."""

    name: str
    """What requests ask for: ``--served-model-name``, or else what ``root`` is."""

    root: str | None = None
    """``--model``: a repository or a folder. None where only names are known (``/metrics``)."""

    max_model_len: int | None = None

    @property
    def repository(self) -> str | None:
        """What was fetched from a hub; None for a folder, and where only a name is known."""
        root = self.root
        if root is None:
            return None
        if (kept := _HUB_FOLDER.search(root)) is not None:
            return kept[1].replace("--", "/")
        return None if root.startswith((".", "/", "~")) or "://" in root else root


@dataclass(frozen=True, slots=True)
class ModelMismatch:
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


def model_mismatch(
    profile: ServingProfile, served: Sequence[ServedModel], *, model: str | None = None
) -> ModelMismatch | None:
    """Return in what a server's models differ from the profile's. None where one of them is the
    profile's, and where nothing is known.

    ``model`` is the one that is meant among several, by its name. What a server was started with
    counts; where that is a folder or not known, the name that it gives the model counts too.
    """
    meant = [each for each in served if model in {None, each.name}]
    if not meant or any(_is_same(profile, each) for each in meant):
        return None
    result = ", ".join(dict.fromkeys(each.root or each.name for each in meant))[:LONGEST]
    names = ", ".join(dict.fromkeys(each.name for each in meant))[:LONGEST]
    why = "what it was started with" if names == result else f"served as {names}"
    if all(each.root is None for each in meant):
        why = "a name, which the server may have been given: --served-model-name"
    is_sure = all(each.repository is not None for each in meant)
    return ModelMismatch(profile.model, result, why, is_sure)


def _is_same(profile: ServingProfile, served: ServedModel) -> bool:
    names = {profile.model, models.model_path(profile.model), profile.provenance.model}
    if served.root in names or served.repository is not None:
        return served.root in names or served.repository in names  # whatever it is called
    given = profile.engine.get("served_model_name")
    called = {given} if isinstance(given, str) else set(given) if isinstance(given, list) else set()
    return served.name in names | called


def listed(text: str) -> tuple[ServedModel, ...]:
    """Return what an answer of ``/v1/models`` lists, adapters left out; empty for no such answer.

    A server lists a model once for each of its names.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    cards = answer.get("data") if isinstance(answer, dict) else None
    result = []
    for card in cards[:MOST] if isinstance(cards, list) else ():
        if not isinstance(card, dict) or card.get("parent") is not None:  # an adapter has one
            continue
        name, root, length = card.get("id"), card.get("root"), card.get("max_model_len")
        if isinstance(name, str) and name:
            root = root[:LONGEST] if isinstance(root, str) and root else None
            result.append(
                ServedModel(name[:LONGEST], root, length if type(length) is int else None)
            )
    return tuple(result)
