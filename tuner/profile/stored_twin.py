"""The twin as a serving profile keeps it, and back: the law, laws as likely, and the traffic.

The traffic is at most MOST_STORED requests, the busiest stretch of what was tuned for. Arrays are
little-endian, one after the other, compressed (zlib) and written in base64:
u4 number of requests, u4 number of drawn laws, u4 values a law; then of the requests f4 gaps
between arrivals in seconds, u4 input, output and cached tokens; then f4 values of the laws; then in
f4 the slowdown of `twin.draws.MachineHistory`.
"""

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.errors import ProfileError
from tuner.profile.numbers import (
    EngineShapeSection,
    FrontEndSection,
    Misfit,
    StepLawSection,
    Twin,
)
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.twin.choice import Weighed, weigh
from tuner.twin.draws import PRINTED, Draw, MachineHistory, draws_of
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.load import loads_of
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay

MOST_STORED = 4000
LEAST_S = 1.0

_HEAD_BYTES = 12
_COEFFICIENTS = len(StepLaw._fields) - 1
_MOST_BYTES = 16 * 2**20
"""Of the data when it is unpacked: forty times what a sweep keeps."""


@dataclass(frozen=True, slots=True)
class _StoredLaws:
    """The laws of a stored twin, as a fitted one gives them."""

    law: StepLaw
    extrapolated_from: int
    kept: Sequence[StepLaw]

    def draws(self, count: int) -> Sequence[StepLaw]:
        return self.kept[:count]


@dataclass(frozen=True, slots=True)
class StoredTwin:
    """The twin as a profile stores it, to be asked again."""

    law: StepLaw
    shape: EngineShape
    extrapolated_from: int
    laws: tuple[StepLaw, ...]
    traffic: Traffic
    length_s: float
    machine: MachineHistory

    @property
    def front_end(self) -> FrontEnd | None:
        """The front end before the engine; None: none was measured."""
        return self.machine.front_end

    def replayed(self, traffic: Traffic, law: StepLaw, *, max_num_seqs: int) -> TwinReplay:
        """Return what clients would have seen under one of the laws."""
        return simulate_behind(self.front_end, traffic, law, self.shape, max_num_seqs=max_num_seqs)

    def weighed(  # noqa: PLR0913 - what the twin is asked
        self,
        traffic: Traffic,
        slo: Slo,
        caps: Sequence[int],
        *,
        headroom: float,
        seed: int = 0,
        requirements: Sequence[Requirement] = (),
        slowdown: float = 1.0,
        most: int = PRINTED,
    ) -> Weighed:
        """Return what the sweep asked, of this traffic and ``headroom`` times of it, on a machine
        that is so many times slower; under so many of the laws at most."""
        laws = [one.slowed(slowdown) for one in self.laws or (self.law,)]
        return weigh(
            loads_of(traffic, headroom, seed=seed),
            _StoredLaws(self.law.slowed(slowdown), self.extrapolated_from, laws),
            self.shape,
            slo,
            sorted(caps),
            requirements=requirements,
            front_end=self.front_end,
            length_s=self.length_s,
            draws=min(most, len(laws)),
        )

    def draws(self, traffic: Sequence[Traffic], count: int = PRINTED) -> list[Draw]:
        """Return so many runs of a fresh engine on this traffic, the first of those that made the
        profile's promise."""
        return draws_of(self.laws[:count], self.machine, traffic)


def stored(view: Forecast) -> Twin:
    """Return the twin's section of a profile."""
    most = len(view.fitted.law.decode_s) - 1
    sizes = sorted({0, *(size for size in view.fitted.knots.tolist() if size < most), most})
    law = view.fitted.law
    draws = np.array([_values(one, sizes) for one in view.fitted.draws(PRINTED)], "<f4")
    traffic, length_s = _busiest(view.traffic, view.length_s)
    gaps_s = np.diff(traffic.arrival_s, prepend=traffic.arrival_s[:1])
    head = np.array([len(traffic), *draws.shape], "<u4")
    lengths = (traffic.input_length, traffic.output_length, traffic.cached_length)
    raw = b"".join(
        (
            head.tobytes(),
            gaps_s.astype("<f4").tobytes(),
            *(length.astype("<u4").tobytes() for length in lengths),
            draws.tobytes(),
            view.machine.slowdown.astype("<f4").tobytes(),
        )
    )
    return Twin(
        law=StepLawSection(
            decode_seqs=sizes, decode_s=law.decode_s[sizes].tolist(), **_coefficients(law)
        ),
        shape=EngineShapeSection(
            **{name: getattr(view.shape, name) for name in EngineShapeSection.model_fields}
        ),
        extrapolated_from=view.fitted.extrapolated_from,
        lag_s=view.shape.lag_s,
        hit_share=view.hit_share,
        speed_sd=view.machine.speed_sd,
        misfit=Misfit(ttft=[*view.machine.ttft_errors], tpot=[*view.machine.tpot_errors])
        if view.machine.ttft_errors
        else None,
        length_s=length_s,
        data=base64.b64encode(zlib.compress(raw, 9)).decode("ascii"),
    )


def restored(section: Twin, *, source: str, front_end: FrontEndSection | None = None) -> StoredTwin:
    """Return the stored twin, behind a front end where one is given. Raises ProfileError when its
    data makes no sense."""
    try:
        packed = base64.b64decode(section.data, validate=True)
        raw = zlib.decompressobj().decompress(packed, _MOST_BYTES)
        requests, laws, width = np.frombuffer(raw[:_HEAD_BYTES], "<u4").tolist()
        columns = np.frombuffer(raw[_HEAD_BYTES:], "<u4")
        lengths = columns[requests : 4 * requests].reshape(3, requests).astype(np.int64)
        rest = columns[4 * requests :].view("<f4").astype(float)
        values = rest[: laws * width].reshape(laws, width)
        gaps_s = columns[:requests].view("<f4").astype(float)
    except ValueError as error:
        raise _senseless(source, str(error)) from error
    except zlib.error as error:
        raise _senseless(source, str(error)) from error
    sizes = section.law.decode_seqs
    if (
        width - len(sizes) != _COEFFICIENTS
        or not requests
        or any(one >= other for one, other in pairwise(sizes))
        or len(sizes) != len(section.law.decode_s)
    ):
        raise _senseless(source, "its parts do not fit each other")
    slowdown = rest[laws * width :]
    if not np.isfinite(slowdown).all() or (slowdown <= 0).any():
        raise _senseless(source, "its parts do not fit each other")
    return StoredTwin(
        law=law_of(section.law),
        shape=EngineShape(**section.shape.model_dump(), lag_s=section.lag_s),
        extrapolated_from=section.extrapolated_from,
        laws=tuple(_law(one, sizes) for one in values),
        traffic=Traffic(np.cumsum(gaps_s), lengths[0], lengths[1], lengths[2]),
        length_s=section.length_s,
        machine=MachineHistory(
            slowdown,
            section.speed_sd,
            () if section.misfit is None else tuple(section.misfit.ttft),
            () if section.misfit is None else tuple(section.misfit.tpot),
            front_end=None if front_end is None else _front_end(front_end),
        ),
    )


def _front_end(section: FrontEndSection) -> FrontEnd:
    return FrontEnd(
        contention=section.contention,
        request_s=section.request_ms / 1e3,
        delivery_s=section.delivery_ms / 1e3,
    )


def law_of(section: StepLawSection) -> StepLaw:
    """Return the law of a profile, for every batch size up to the largest."""
    coefficients = (getattr(section, name) for name in StepLaw._fields[1:])
    return _law(np.array([*section.decode_s, *coefficients]), section.decode_seqs)


def _coefficients(law: StepLaw) -> dict[str, float]:
    return dict(zip(StepLaw._fields[1:], law[1:], strict=True))


def _values(law: StepLaw, sizes: list[int]) -> list[float]:
    return [*law.decode_s[sizes].tolist(), *law[1:]]


def _law(values: Floats, sizes: list[int]) -> StepLaw:
    """Tabulate a law; beyond the last size f goes on with its last slope."""
    decode_s = np.interp(np.arange(sizes[-1] + 1), sizes, values[: len(sizes)])
    return StepLaw(decode_s, *(float(value) for value in values[len(sizes) :]))


def _busiest(traffic: Traffic, length_s: float) -> tuple[Traffic, float]:
    """Return the stretch of MOST_STORED requests with the most tokens a second, from 0 s on."""
    if len(traffic) > MOST_STORED:
        traffic = traffic.busiest(MOST_STORED)
        length_s = max(LEAST_S, float(traffic.arrival_s[-1] - traffic.arrival_s[0]))
    return replace(traffic, arrival_s=traffic.arrival_s - traffic.arrival_s[0]), length_s


def _senseless(source: str, why: str) -> ProfileError:
    return ProfileError(
        f"{source}: twin.data: makes no sense ({why})",
        hint="Restore the file as tuner wrote it, or run tuner sweep again.",
    )
