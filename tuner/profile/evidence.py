"""The file beside a profile: the twin, so that `plan`, `watch` and `verify` can ask it again.

It is a zip of arrays (npz) and of ``facts.json``: the law and laws as likely, the limits of the
engine, the slowdown of the machine, and the traffic that was tuned for, of a long one the busiest
stretch of MOST_STORED requests.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.scheduler.state import Floats, Ints, StepLaw
from tuner.errors import ProfileError
from tuner.profile.profile import FrontEndSection, ServingProfile, beside, evidence_of
from tuner.traffic.constants import LEAST_PART_S, PRINTED_DRAWS
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.twin.decide import Choice, choose
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd
from tuner.twin.samples import Machine, loads_of
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, simulate

MOST_STORED = 4000

MOST_UNPACKED = 16 * 2**20
"""Bytes: forty times what a sweep keeps."""

MOST_SEQS = 65_536
"""Of a law's batch sizes: each is tabulated."""

_COEFFICIENTS = len(StepLaw._fields) - 1


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
    hit_share: float = 0.0
    """What the prefix cache gave of what an endless one would have given."""

    def draws(self, count: int) -> Sequence[StepLaw]:
        return self.laws[:count]

    def replayed(self, traffic: Traffic, law: StepLaw, *, max_num_seqs: int) -> TwinReplay:
        """Return what clients would have seen under one of the laws."""
        return simulate(
            traffic, law, self.shape, max_num_seqs=max_num_seqs, front_end=self.machine.front_end
        )

    def slowed(self, factor: float) -> "StoredTwin":
        """Return the twin of a machine that is so many times slower."""
        laws = tuple(each.slowed(factor) for each in self.laws or (self.law,))
        return replace(self, law=self.law.slowed(factor), laws=laws)

    def choice(  # noqa: PLR0913 - what the twin is asked
        self,
        traffic: Traffic,
        slo: Slo,
        caps: Sequence[int],
        *,
        headroom: float,
        requirements: Sequence[Requirement] = (),
        most: int = PRINTED_DRAWS,
    ) -> Choice:
        """Return what the sweep asked, of this traffic and ``headroom`` times of it; under so many
        of the laws at most."""
        loads = loads_of(traffic, headroom, seed=0, rate_rps=len(traffic) / self.length_s)
        return choose(
            loads, self, self.shape, slo, sorted(caps), requirements=requirements,
            front_end=self.machine.front_end, draws=min(most, len(self.laws)),
        )  # fmt: skip


def pack(view: Forecast) -> bytes:
    """Return the content of the file beside a profile of this twin."""
    law, machine = view.fitted.law, view.machine
    most = len(law.decode_s) - 1
    sizes = sorted({0, *(size for size in view.fitted.knots.tolist() if size < most), most})
    traffic, length_s = _busiest(view.traffic, view.length_s)
    laws = [law, *view.fitted.draws(PRINTED_DRAWS)]
    columns = {
        "gaps_s": np.diff(traffic.arrival_s, prepend=traffic.arrival_s[:1]).astype("<f4"),
        "input_length": traffic.input_length.astype("<u4"),
        "output_length": traffic.output_length.astype("<u4"),
        "cached_length": traffic.cached_length.astype("<u4"),
        "sizes": np.array(sizes, "<u4"),
        "laws": np.array([[*law.decode_s[sizes], *law[1:]] for law in laws], "<f4"),
        "slowdown": machine.slowdown.astype("<f4"),
    }
    facts = {
        "shape": asdict(view.shape),
        "extrapolated_from": view.fitted.extrapolated_from,
        "length_s": length_s,
        "hit_share": view.hit_share,
        "speed_sd": machine.speed_sd,
        "ttft_errors": machine.ttft_errors,
        "tpot_errors": machine.tpot_errors,
    }
    file = BytesIO()
    np.savez_compressed(file, **columns)  # type: ignore[arg-type] # each an array
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("facts.json"), json.dumps(facts))
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
            unpacked = sum(each.file_size for each in archive.infolist())
            names = archive.namelist() if unpacked <= MOST_UNPACKED else []
            parts = {name: archive.read(name) for name in names}
        arrays = {
            name.removesuffix(".npy"): np.load(BytesIO(part), allow_pickle=False)
            for name, part in parts.items()
            if name.endswith(".npy")
        }
        return _twin(json.loads(parts["facts.json"]), arrays, behind)
    except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile, RecursionError) as error:
        raise ProfileError(
            f"{source}: makes no sense ({str(error)[:100]})",
            hint="Restore the file as tuner wrote it, or run tuner sweep again.",
        ) from error


def _twin(
    facts: dict[str, Any], arrays: dict[str, np.ndarray], behind: FrontEndSection | None
) -> StoredTwin:
    sizes, laws = arrays["sizes"].astype(np.int64), arrays["laws"].astype(float)
    names = ("input_length", "output_length", "cached_length")
    lengths = [arrays[name].astype(np.int64) for name in names]
    gaps_s, slowdown = arrays["gaps_s"].astype(float), arrays["slowdown"].astype(float)
    fits = (
        laws.ndim == 2
        and laws.shape[1] == len(sizes) + _COEFFICIENTS
        and len(laws) > 1
        and len(sizes) > 0
        and (np.diff(sizes) > 0).all()
        and 0 < int(sizes[-1]) <= MOST_SEQS
        and len(gaps_s) > 0
        and all(length.shape == gaps_s.shape for length in lengths)
    )
    is_sane = all(
        np.isfinite(each).all() and (each >= 0).all() for each in (laws, gaps_s, slowdown)
    )
    if not fits or not is_sane or (slowdown <= 0).any():
        raise ValueError("its parts do not fit each other")
    shape = EngineShape(**facts["shape"])
    limits = (shape.max_num_batched_tokens, shape.block_size, shape.kv_blocks, shape.max_model_len)
    if not all(type(limit) is int and limit > 0 for limit in limits):
        raise ValueError("an engine without room")
    front_end = None
    if behind is not None:
        front_end = FrontEnd(behind.contention, behind.request_ms / 1e3, behind.delivery_ms / 1e3)
    law, *drawn = (_law(law, sizes) for law in laws)
    return StoredTwin(
        law=law,
        shape=shape,
        extrapolated_from=int(facts["extrapolated_from"]),
        laws=tuple(drawn),
        traffic=Traffic(np.cumsum(gaps_s), *lengths),
        length_s=max(LEAST_PART_S, float(facts["length_s"])),
        machine=Machine(
            slowdown,
            float(facts["speed_sd"]),
            tuple(map(float, facts["ttft_errors"])),
            tuple(map(float, facts["tpot_errors"])),
            front_end,
        ),
        hit_share=float(facts["hit_share"]),
    )


def _law(values: Floats, sizes: Ints) -> StepLaw:
    """Tabulate a law; beyond the last size f continues with its last slope."""
    decode_s = np.interp(np.arange(sizes[-1] + 1), sizes, values[: len(sizes)])
    return StepLaw(decode_s, *(float(value) for value in values[len(sizes) :]))


def _busiest(traffic: Traffic, length_s: float) -> tuple[Traffic, float]:
    """Return the stretch of MOST_STORED requests with the most tokens a second, from 0 s on."""
    if len(traffic) > MOST_STORED:
        traffic = traffic.busiest(MOST_STORED)
        length_s = max(LEAST_PART_S, float(traffic.arrival_s[-1] - traffic.arrival_s[0]))
    return traffic.from_zero(), length_s
