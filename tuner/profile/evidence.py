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
from tuner.profile.profile import (
    MOST_TOKENS,
    Admission,
    Decision,
    FrontEndSection,
    Promise,
    ServingProfile,
    beside,
    evidence_of,
)
from tuner.traffic.constants import LEAST_PART_S
from tuner.traffic.slo import Slo
from tuner.traffic.window import busiest_rows
from tuner.twin.decide import Choice, choose
from tuner.twin.forecast import Forecast
from tuner.twin.law import prompt_s
from tuner.twin.samples import Machine, loads_of
from tuner.twin.simulation import EngineShape, FrontEnd, Traffic

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
ARRAYS = ("sizes", "laws", "slowdown", "traffic")
"""Batch sizes; of each law its step at these sizes, then its other numbers; Machine.slowdown; the
columns of the traffic, first the gaps between arrivals."""


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
        loads = loads_of(traffic, headroom, seed=0, rate_rps=len(traffic) / self.length_s)
        return choose(
            loads, laws, self.shape, slo, sorted(caps), seen=self.extrapolated_from,
            front_end=self.machine.front_end,
        )  # fmt: skip


def pack(view: Forecast) -> bytes:
    """Return the content of the file beside a profile of this twin."""
    fitted, traffic, length_s = view.fitted, view.traffic, view.length_s
    if len(traffic) > MOST_STORED:
        tokens = traffic.input_length + traffic.output_length
        traffic = traffic.rows(busiest_rows(traffic.arrival_s, tokens, MOST_STORED))
        length_s = float(np.ptp(traffic.arrival_s))
    most = len(fitted.law.decode_s) - 1
    sizes = np.unique([0, *fitted.knots[fitted.knots < most], most])
    laws = [[*law.decode_s[sizes], *law[1:]] for law in (fitted.law, *fitted.laws)]
    gaps_s = np.diff(traffic.arrival_s, prepend=traffic.arrival_s[:1])
    arrays = (sizes, laws, view.machine.slowdown, [gaps_s, *traffic.columns()[1:]])
    facts = Facts(
        shape=view.shape,
        extrapolated_from=fitted.extrapolated_from,
        length_s=max(LEAST_PART_S, length_s),
        speed_sd=view.machine.speed_sd,
    )
    file = BytesIO()
    stored = {name: np.asarray(each, "<f4") for name, each in zip(ARRAYS, arrays, strict=True)}
    np.savez_compressed(file, **stored)  # type: ignore[arg-type] # each an array
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
    twin = unpack(evidence_of(profile, path), source=str(beside(path)))
    if behind is None:
        return twin
    front_end = FrontEnd(behind.contention, behind.delay_ms / 1e3)
    return replace(twin, machine=replace(twin.machine, front_end=front_end))


def unpack(content: bytes, *, source: str) -> StoredTwin:
    """Return the twin in the content of such a file. Raises ProfileError where it makes no
    sense."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if sum(each.file_size for each in archive.infolist()) > MOST_UNPACKED:
                raise ValueError("it is too large")
            facts = msgspec.json.decode(archive.read("facts.json"), type=Facts)
        with np.load(BytesIO(content), allow_pickle=False) as stored:
            arrays = [stored[name].astype(np.float64) for name in ARRAYS]
        if not _fits(facts.shape, *arrays):
            raise ValueError("its parts do not fit each other")
    except NO_SENSE as error:
        raise ProfileError(
            f"{source}: makes no sense ({str(error)[:100]})",
            hint="Restore the file as tuner wrote it, or run tuner sweep again.",
        ) from error
    sizes, rows, slowdown, (gaps_s, *lengths) = arrays
    every, most = np.arange(sizes[-1] + 1), len(sizes)
    law, *laws = (
        StepLaw(np.interp(every, sizes, row[:most]), *row[most:].tolist()) for row in rows
    )
    return StoredTwin(
        law=law,
        shape=facts.shape,
        extrapolated_from=facts.extrapolated_from,
        laws=tuple(laws),
        traffic=Traffic(np.cumsum(gaps_s), *(each.astype(np.int64) for each in lengths)),
        length_s=facts.length_s,
        machine=Machine(slowdown, facts.speed_sd),
    )


def _fits(
    shape: EngineShape,
    sizes: np.ndarray,
    laws: np.ndarray,
    slowdown: np.ndarray,
    traffic: np.ndarray,
) -> bool:
    """Whether the arrays of a stranger's file have what a twin needs."""
    limits = (shape.max_num_batched_tokens, shape.block_size, shape.kv_blocks, shape.max_model_len)
    return bool(
        min(limits) > 0
        and all(
            each.size and each.min() >= 0 and each.max() <= MOST_TOKENS
            for each in (sizes, laws, slowdown, traffic)
        )
        and (np.diff(sizes) >= 1).all()
        and 1 <= sizes[-1] <= MOST_SEQS
        and laws.shape == (max(2, len(laws)), len(sizes) + len(StepLaw._fields) - 1)
        and slowdown.shape == (len(slowdown),)
        and slowdown.min() > 0
        and traffic.shape == (4, traffic.shape[-1])
    )


def admission(
    decision: Decision, promise: Promise, law: StepLaw | None, *, token_budget: int
) -> Admission | None:
    """Return limits on what a server lets in, for the decision's SLO; None without a limit on the
    TTFT or a law. Beyond them vLLM answers 503 at once instead of letting everybody wait.

    ``max_num_queued_tokens`` = TTFT limit x prefill throughput: that many prompt tokens are
    computed before a request that comes now has waited too long. The throughput is that of
    iterations with every slot decoding and the rest of the token budget prefilling.

    ``max_num_queued_reqs`` = slots + those that come free within the TTFT limit, when all of them
    decode outputs of mean length. vLLM calls it a coarse valve; the other one guards the TTFT.
    """
    limit_ms = decision.slo.ttft_ms
    if limit_ms is None or law is None:
        return None
    slots, limit_s = min(decision.max_num_seqs, token_budget - 1), limit_ms / 1000
    law, prefill = law.up_to(slots), token_budget - slots
    tokens_per_s = prefill / max(prompt_s(law, prefill, decode_seqs=slots), 1e-9)
    outputs = promise.output_tokens_per_s / max(promise.requests_per_s, 1e-9)
    holding_s = max(outputs, 1.0) * float(law.decode_s[slots])
    tokens = max(1, int(limit_s * tokens_per_s))
    requests = slots + int(slots * limit_s / max(holding_s, 1e-9))
    of_tokens = (
        f"max_num_queued_tokens {tokens}: a TTFT limit of {limit_ms:g} ms x "
        f"{tokens_per_s:.0f} prompt tokens/s beside {slots} decoding sequences"
    )
    of_requests = (
        f"max_num_queued_reqs {requests}: {slots} slots, and those that come free within "
        f"{limit_ms:g} ms when each is held for {holding_s:.3g} s"
    )
    return Admission(
        max_num_queued_tokens=tokens,
        max_num_queued_reqs=requests,
        reasons=[of_tokens, of_requests],
    )
