"""The file beside a profile: the twin, so that `plan`, `watch` and `verify` can ask it again.

It is a zip of arrays (npz) and of ``facts.json``: the law and laws as likely, the limits of the
engine, the slowdown of the machine, and the traffic that was tuned for, of a long one the busiest
stretch of MOST_STORED requests.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from tuner.engines.scheduler.state import StepLaw
from tuner.errors import ProfileError
from tuner.profile.profile import FrontEndSection, ServingProfile, beside, evidence_of
from tuner.traffic.constants import LEAST_PART_S
from tuner.traffic.slo import Slo
from tuner.twin.decide import Choice, choose
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd
from tuner.twin.samples import Machine, loads_of
from tuner.twin.simulation import EngineShape, Traffic

MOST_STORED = 4000
MOST_UNPACKED = 16 * 2**20
"""Bytes: forty times what a sweep keeps."""
MOST_SEQS = 65_536
"""Of a law's batch sizes: each is tabulated."""
NO_SENSE = (
    ValueError, LookupError, TypeError, AttributeError, OSError, MemoryError, RecursionError,
    zipfile.BadZipFile,
)  # fmt: skip
"""What the content of a stranger's file may raise."""
COLUMNS = ("gaps_s", "input_length", "output_length", "cached_length")
"""Of the traffic."""


class Facts(Struct, frozen=True):
    shape: EngineShape
    extrapolated_from: int
    length_s: Annotated[float, Meta(ge=LEAST_PART_S)]
    speed_sd: float


@dataclass(frozen=True, slots=True)
class StoredTwin:
    """The twin as a profile stores it, to be asked again."""

    law: StepLaw
    shape: EngineShape
    extrapolated_from: int
    """The largest batch that was seen."""
    laws: tuple[StepLaw, ...]
    """As likely as the law."""
    traffic: Traffic
    length_s: float
    """How long the traffic takes to arrive."""
    machine: Machine

    def choice(
        self,
        traffic: Traffic,
        slo: Slo,
        caps: Sequence[int],
        *,
        headroom: float,
        slowdown: float = 1.0,
    ) -> Choice:
        """Return what the sweep asked, of this traffic and ``headroom`` times of it, on a machine
        that is so many times slower."""
        laws = tuple(law.slowed(slowdown) for law in self.laws)
        slower = replace(self, law=self.law.slowed(slowdown), laws=laws)
        loads = loads_of(traffic, headroom, seed=0, rate_rps=len(traffic) / self.length_s)
        return choose(
            loads, slower, self.shape, slo, sorted(caps), front_end=self.machine.front_end,
            draws=len(laws),
        )  # fmt: skip


def pack(view: Forecast) -> bytes:
    """Return the content of the file beside a profile of this twin."""
    law, machine, traffic, length_s = view.fitted.law, view.machine, view.traffic, view.length_s
    if len(traffic) > MOST_STORED:
        traffic = traffic.busiest(MOST_STORED)
        length_s = float(traffic.arrival_s[-1] - traffic.arrival_s[0])
    most = len(law.decode_s) - 1
    sizes = sorted({0, *(size for size in view.fitted.knots.tolist() if size < most), most})
    laws = [law, *view.fitted.laws]
    gaps_s = np.diff(traffic.arrival_s, prepend=traffic.arrival_s[:1]).astype("<f4")
    lengths = (each.astype("<u4") for each in traffic.columns()[1:])
    columns = dict(zip(COLUMNS, (gaps_s, *lengths), strict=True))
    facts = Facts(
        shape=view.shape,
        extrapolated_from=view.fitted.extrapolated_from,
        length_s=max(LEAST_PART_S, length_s),
        speed_sd=machine.speed_sd,
    )
    file = BytesIO()
    np.savez_compressed(
        file,
        sizes=np.array(sizes, "<u4"),
        laws=np.array([[*law.decode_s[sizes], *law[1:]] for law in laws], "<f4"),
        slowdown=machine.slowdown.astype("<f4"),
        **columns,  # type: ignore[arg-type] # each an array
    )
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("facts.json"), msgspec.json.encode(facts))
    return file.getvalue()


def twin_of(
    profile: ServingProfile, path: Path, *, cure: str, behind: FrontEndSection | None = None
) -> StoredTwin:
    """Return the twin of the profile at a path, behind a front end where one is given. Raises
    ProfileError, with the cure where the profile has none."""
    if profile.evidence is None:
        raise ProfileError(f"{path}: evidence: the windows alone decided this profile", hint=cure)
    return unpack(evidence_of(profile, path), source=str(beside(path)), behind=behind)


def unpack(content: bytes, *, source: str, behind: FrontEndSection | None = None) -> StoredTwin:
    """Return the twin in the content of such a file. Raises ProfileError where it makes no
    sense."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if sum(each.file_size for each in archive.infolist()) > MOST_UNPACKED:
                raise ValueError("it is too large")
            facts = msgspec.json.decode(archive.read("facts.json"), type=Facts)
        with np.load(BytesIO(content), allow_pickle=False) as arrays:
            gaps_s, *lengths = (arrays[name].astype("<f8") for name in COLUMNS)
            sizes, laws = arrays["sizes"].astype(np.int64), arrays["laws"].astype("<f8")
            slowdown = arrays["slowdown"].astype("<f8")
        _check(facts, sizes, [laws, gaps_s, *lengths, slowdown])
        law, *drawn = (_law(row, sizes) for row in laws)
        traffic = Traffic(np.cumsum(gaps_s), *(each.astype(np.int64) for each in lengths))
    except NO_SENSE as error:
        raise ProfileError(
            f"{source}: makes no sense ({str(error)[:100]})",
            hint="Restore the file as tuner wrote it, or run tuner sweep again.",
        ) from error
    front_end = None
    if behind is not None:
        front_end = FrontEnd(behind.contention, behind.delay_ms / 1e3)
    return StoredTwin(
        law=law,
        shape=facts.shape,
        extrapolated_from=facts.extrapolated_from,
        laws=tuple(drawn),
        traffic=traffic,
        length_s=facts.length_s,
        machine=Machine(slowdown, facts.speed_sd, front_end),
    )


def _check(facts: Facts, sizes: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Raise ValueError unless the parts fit each other."""
    laws, gaps_s, *lengths = arrays[:5]
    shape = facts.shape
    limits = (shape.max_num_batched_tokens, shape.block_size, shape.kv_blocks, shape.max_model_len)
    fits = (
        laws.shape[1:] == (len(sizes) + len(StepLaw._fields) - 1,)
        and len(laws) > 1
        and (np.diff(sizes) > 0).all()
        and 0 < int(sizes[-1]) <= MOST_SEQS
        and len(gaps_s) > 0
        and all(each.shape == gaps_s.shape for each in lengths)
        and min(limits) > 0
        and len(arrays[-1]) > 0
        and (arrays[-1] > 0).all()
        and all(np.isfinite(each).all() and (each >= 0).all() for each in arrays)
    )
    if not fits:
        raise ValueError("its parts do not fit each other")


def _law(values: np.ndarray, sizes: np.ndarray) -> StepLaw:
    """Tabulate a law between the sizes that are stored."""
    decode_s = np.interp(np.arange(sizes[-1] + 1), sizes, values[: len(sizes)])
    return StepLaw(decode_s, *values[len(sizes) :].tolist())
