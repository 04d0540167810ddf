"""The numbers of a serving profile: what one value of ``max_num_seqs`` gives, and the twin."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
)


def _six_digits(value: float) -> float:
    """Round to six digits: no measurement earns more, and fewer are easier to read."""
    return float(f"{value:.6g}")


Number = Annotated[float, Field(ge=0), AfterValidator(_six_digits)]
Fraction = Annotated[float, Field(ge=0, le=1), AfterValidator(_six_digits)]
Count = Annotated[int, Field(ge=0)]
Seqs = Annotated[int, Field(ge=1)]
Signed = Annotated[float, AfterValidator(_six_digits)]
Limit = Annotated[float, Field(gt=0), AfterValidator(_six_digits)]
Range = Annotated[tuple[Number, Number], Strict(strict=False)]
SeqsRange = Annotated[tuple[Seqs, Seqs], Strict(strict=False)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class SpreadSection(Section):
    """The spread of a latency over the requests, in milliseconds."""

    mean: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number


class KvCacheUsageSection(Section):
    """Used share of the KV-cache blocks; the mean is over time."""

    mean: Fraction
    p99: Fraction
    peak: Fraction


class DeviceUseSection(Section):
    """The device's use, read once a second; None where it does not tell."""

    utilisation_mean: Fraction | None
    utilisation_sd: Number | None
    idle_share: Fraction | None
    memory_peak_bytes: Number | None
    power_mean_w: Number | None
    others_mean: Fraction | None
    """Share of the CPU cores that other processes took."""

    steal_mean: Fraction | None
    clock_drop: Fraction | None
    throttled_share: Fraction | None
    foreign_share: Fraction | None = None


class Binds(Section):
    """Share of the engine's busy time in which a request waited, by what it waited for first."""

    slots: Fraction
    """``max_num_seqs`` sequences were running."""

    kv_blocks: Fraction
    token_budget: Fraction
    """``max_num_batched_tokens`` were spent."""


class CapNumbers(Section):
    """The numbers of one value of ``max_num_seqs``. A latency is None where no request has one."""

    attainment: Fraction
    goodput_rps: Number
    requests_per_s: Number
    output_tokens_per_s: Number
    ttft_ms: SpreadSection | None
    tpot_ms: SpreadSection | None
    itl_ms: SpreadSection | None
    e2el_ms: SpreadSection | None
    queue_ms: SpreadSection | None
    kv_cache_usage: KvCacheUsageSection | None
    preemptions: Count
    recomputed_tokens: Count
    running_peak: Count
    binds: Binds | None = None
    """What kept requests waiting; None where nothing tells."""


class MeasuredNumbers(CapNumbers):
    """The same, measured in the windows that were replayed."""

    cut: bool
    """Cut short, because it had lost for certain."""

    blocks: Count
    """How many windows were replayed, repeats included."""

    device: DeviceUseSection | None


class ChangeSection(Section):
    """The change by a step up the ladder, with its 95 % interval."""

    value: Signed
    low: Signed
    high: Signed


class CurveStep(CapNumbers):
    """One step of the curve: the numbers are the twin's for the whole part that was tuned for, or
    measured in the windows where the twin did not decide."""

    max_num_seqs: Seqs
    cut: bool
    """Cut short when it was replayed, because it had lost for certain."""

    source: Literal["measured", "twin", "both"]
    """``both``: the numbers are the twin's, and ``measured`` stands beside them."""

    intervals: dict[str, Range]
    """Name of a number, such as ``goodput_rps`` or ``tpot_p95_ms`` → its 95 % interval."""

    changes: dict[str, ChangeSection]
    """Against the step below: shares of goodput, p95 TPOT and p99 E2EL (0.1 is 10 % more), and
    differences of the rest."""

    measured: MeasuredNumbers | None


class Predicted(CapNumbers):
    """The twin's numbers of the chosen value at ``load`` times the trace's rate."""

    load: Limit
    intervals: dict[str, Range]
    """Again: the same traffic on a fresh engine."""


Checked = Annotated[tuple[Signed, Signed, Signed, Signed], Strict(strict=False)]


class CheckSection(Section):
    """The twin against the confirming replay, number by number."""

    unseen: bool
    """Of windows that the ladder had not replayed."""

    foretold: dict[str, Checked]
    """Name of a number → what was predicted of it before the replay, the ends of its 95 %, and what
    was measured; empty where nothing was foretold."""

    paced: dict[str, Checked]
    """The same by the twin at the speed that the engine had."""

    failed: list[Literal["foretold", "paced"]]
    """The checks that failed. After ``foretold`` the measured replay is the promise; after
    ``paced`` the windows decided."""

    @property
    def numbers(self) -> dict[str, Checked]:
        return self.foretold or self.paced

    @property
    def held(self) -> int:
        return sum(low <= measured <= high for _, low, high, measured in self.numbers.values())


class Promise(CapNumbers):
    """The numbers of the choice at ``load`` times the trace's rate.

    Where there was a confirming replay of some windows, they are as it measured them. What is
    promised of all of the traffic is ``predicted``; where that is empty, these numbers are.
    """

    load: Limit
    source: Literal["confirming run", "ladder", "twin"]
    predicted: list[Predicted]
    """By the twin for the whole part, at the captured load and with headroom; none where what it
    foretold of the confirming replay failed."""

    checked: CheckSection | str | None = None
    """The twin against the replay that confirmed the choice; in words why none did, and what does;
    None where there is no twin to check."""

    @property
    def record(self) -> CheckSection | None:
        """The check, where a replay confirmed the choice."""
        return self.checked if isinstance(self.checked, CheckSection) else None

    @property
    def headroom(self) -> float:
        """Times the captured load that the choice was made for besides; 1 without any."""
        return max((one.load for one in self.predicted), default=1.0)


class Baseline(Section):
    """The cap that is set now, and what it would give this traffic."""

    max_num_seqs: Seqs
    source: Literal["base", "default"]
    """The file after ``--base``, or what vLLM takes where nothing is said."""

    never_filled: bool
    """The traffic never fills so many slots: the numbers are those of any cap that it does not
    fill."""

    numbers_at: Seqs
    """The cap that the numbers are of: the largest tried where it stands for more."""

    numbers: CapNumbers | None
    """None where nothing is known of so many slots."""


class Admission(Section):
    """Limits on what a server lets in, as engine arguments; off unless `tuner apply` is asked."""

    max_num_queued_tokens: Seqs
    max_num_queued_reqs: Seqs
    reasons: list[str]
    """Where each comes from."""


class Misfit(Section):
    """Log of measured / predicted mean, of each window that the twin had not seen."""

    ttft: list[Signed]
    tpot: list[Signed]


class StepLawSection(Section):
    """Seconds of an iteration: f(n) + c P + c2 P^2 + p0 p + d X + e Y; see docs/deciding.md."""

    decode_seqs: Annotated[list[Annotated[int, Field(ge=0, le=65_536)]], Field(min_length=1)]
    """Batch sizes n, ascending, between which f is linear."""

    decode_s: list[Number]
    """f at those."""

    prefill_token_s: Number
    prefill_token_squared_s: Number
    prefill_seq_s: Number
    context_token_s: Number
    prefill_context_s: Number


class EngineShapeSection(Section):
    """The limits of the engine besides ``max_num_seqs``."""

    max_num_batched_tokens: Seqs
    block_size: Seqs
    kv_blocks: Seqs
    max_model_len: Seqs
    late_release: bool
    """Asynchronous scheduling: who finishes comes free, and who arrives is known, one iteration
    later."""

    prefix_caching: bool
    reserves_prompts: bool


class FrontEndSection(Section):
    """The front end of the server that confirmed: see ``twin.front_end``."""

    contention: Limit
    """How many times as long an iteration took as in the ladder's engine at equal work."""

    request_ms: Number
    """Before the scheduler, for each request."""

    delivery_ms: Number
    """After it, for each token."""


class Twin(Section):
    """The twin that decided, so that `tuner plan` can ask it about other loads."""

    law: StepLawSection
    shape: EngineShapeSection
    extrapolated_from: Count
    """The largest batch that was seen."""

    lag_s: Number
    """Before a request reaches the scheduler."""

    hit_share: Fraction
    """What the prefix cache gave of what an endless one would have given."""

    speed_sd: Number
    """Standard deviation of the machine's log speed over minutes."""

    misfit: Misfit | None = None
    """None where no unseen window was replayed."""

    length_s: Limit
    """How long the traffic below takes to arrive."""

    data: str
    """Base64 of the compressed traffic, of laws as likely and of the machine's speed; see
    ``profile.stored_twin``."""
