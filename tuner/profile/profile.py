"""The serving profile: a page of YAML that says what to run, and what that rests on.

The structs are the page, and the object of ``tuner sweep --json``. Times are in milliseconds. A
profile is strict: unknown keys, wrong types and edited numbers are refused by their key. What
`plan`, `watch` and `verify` need besides lies beside it (``profile.evidence``).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, dataclass_transform

import msgspec
from msgspec import Meta, Struct

from tuner.engines import sampling as drawing
from tuner.engines.sampling import GREEDY, Sampling
from tuner.errors import ProfileError, TargetError
from tuner.system import files, yaml_strict
from tuner.system.printable import printable
from tuner.traffic.constants import VerdictKind
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.slo import Slo

Number = Annotated[float, Meta(ge=0, le=1e300)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Limit = Annotated[float, Meta(gt=0, le=1e300)]
Count = Annotated[int, Meta(ge=0)]
Seqs = Annotated[int, Meta(ge=1)]
Range = tuple[Number, Number]
Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]

MOST_EVIDENCE_BYTES = 1 << 20
"""Of the file beside a profile: five times what a sweep keeps."""

MOST_TOKENS = 1 << 31
"""Of a request or of an iteration."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a profile: its subclasses are frozen and strict as well."""


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


class Binds(Section):
    """Share of the engine's busy time in which a request waited, by what it waited for first."""

    slots: Fraction
    kv_blocks: Fraction
    token_budget: Fraction


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
    binds: Binds | None
    """What kept requests waiting; None where nothing tells."""


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

    measured: CapNumbers | None
    """In the windows that were replayed."""


class Predicted(CapNumbers):
    """The twin's numbers of the chosen value at ``load`` times the trace's rate."""

    load: Limit
    intervals: dict[str, Range]
    """Again: the same traffic on a fresh engine."""


class Promise(CapNumbers):
    """The numbers of the choice at ``load`` times the trace's rate.

    Where there was a confirming replay of some windows, they are as it measured them. What is
    promised of all of the traffic is ``predicted``; where that is empty, these numbers are.
    """

    load: Limit
    source: Literal["confirming run", "ladder", "twin"]
    predicted: list[Predicted]
    """By the twin for the whole part, at the recorded load and with headroom."""

    checked: dict[str, tuple[Number, Number, Number, Number]] | str | None = None
    """The twin against the replay that confirmed the choice: name of a number → the twin's at the
    speed that the engine had, the ends of what it may be off, and what was measured. In words why
    none did, and what does; None where there is no twin to check."""

    @property
    def headroom(self) -> float:
        """Times the recorded load that the choice was made for besides; 1 without any."""
        return max((each.load for each in self.predicted), default=1.0)


class Baseline(Section):
    """The cap that is set now, and what it would give this traffic."""

    max_num_seqs: Seqs
    source: Literal["base", "default"]
    """The file after ``--base``, or vLLM's default."""

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


class FrontEndSection(Section):
    """The front end of the server that confirmed: see ``twin.simulation``."""

    contention: Limit
    delay_ms: Number


class SloSection(Section):
    """The limits one request must meet; None is no limit."""

    ttft_ms: Limit | None
    ttft_ms_per_input_token: Limit | None
    tpot_ms: Limit | None
    e2el_ms: Limit | None
    derived: bool
    """From the trace's own unloaded latencies, not given by the user."""

    @property
    def slo(self) -> Slo:
        """The same in seconds."""
        limits_ms = (self.ttft_ms, self.ttft_ms_per_input_token, self.tpot_ms, self.e2el_ms)
        ttft_s, per_token_s, tpot_s, e2el_s = (ms and ms / 1e3 for ms in limits_ms)
        return Slo(ttft_s, per_token_s or 0.0, tpot_s, e2el_s, self.derived)


class Decision(Section):
    verdict: VerdictKind
    max_num_seqs: Seqs
    interval: tuple[Seqs, Seqs]
    confidence: Fraction
    reason: str
    busy: str | None
    """By what it was seen that others used the machine meanwhile; None where nobody did."""

    objective: str
    slo: SloSection
    requirements: list[RequirementCheck] = []
    """What was required besides."""

    @property
    def broken(self) -> list[RequirementCheck]:
        return [requirement for requirement in self.requirements if not requirement.kept]


class Validity(Section):
    """For which traffic the profile holds."""

    peak_concurrency: Count | None
    """Most requests in flight during the replay at the chosen value."""

    validated_load: Limit
    trace_digest: str
    window: str
    """The part of the trace that was tuned for, START+LENGTH."""

    windows: list[str]
    """What was replayed of it."""

    arrival_rate_rps: Number
    retune_when: list[str]


class EngineSeconds(Section):
    starts: Number
    replay: Number


class Provenance(Section):
    """The provenance of the numbers."""

    engine: Literal["vllm", "serve", "sim"]
    """What was measured on: vLLM in tuner's own process, vLLM behind a server, or a simulation."""

    device: dict[str, Any]
    versions: dict[str, str]
    environment: dict[str, str] | None
    """The variables that change how an engine computes; None for a simulation."""

    model: str
    model_digest: str | None
    given: list[str]
    """The engine arguments that the user or ``tuner refine`` chose; vLLM came to all others."""

    tuner: str
    seed: int
    created: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}(Z|[+]00:00)$")]
    """ISO 8601 in UTC."""

    wall_s: Number
    engine_starts: Count
    engine_seconds: EngineSeconds
    warnings: list[str]
    ranks: Count = 1
    """Of a data-parallel server, of which one was measured: every number is one rank's."""

    replicas: Seqs = 1
    """Servers that share the trace's traffic; every number is one's."""

    router: Literal["least", "rr", "random", "session"] | None = None
    """How it is shared; None where one server gets all of it."""

    confirm: Literal["inproc", "server"] | None = None
    """Where the engine ran that confirmed the choice: in tuner's process, or behind a server;
    None where none did."""

    sampling: dict[str, float] | None = None
    """How tokens were drawn, by vLLM's names; None for a simulation."""

    @property
    def of_ranks(self) -> str | None:
        """Say that every number is one rank's; None where it is a whole server's."""
        if self.ranks == 1:
            return None
        return f"max_num_seqs and every number are those of one of {self.ranks} data-parallel ranks"


class ServingProfile(Section):
    schema_version: Literal[1]
    engine: dict[Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$")], Any]
    """vLLM's argument names → values, all meant for production."""

    decision: Decision
    baseline: Baseline | None
    """None where nothing is known of what is set now."""

    curve: list[CurveStep]
    promise: Promise
    front_end: FrontEndSection | None
    """None where no server confirmed."""

    admission: Admission | None
    """None where the SLO has no limit on the TTFT, or the windows alone decided."""

    validity: Validity
    provenance: Provenance
    evidence: Digest | None = None
    """Of the file beside it, which holds the twin; None where the windows alone decided."""

    digest: str = ""
    """Over the canonical JSON of everything else."""

    @property
    def model(self) -> str:
        return str(self.engine["model"])

    @property
    def sampling(self) -> Sampling:
        """The sampling by which it was measured; what is compared with it samples alike."""
        kept = self.provenance.sampling
        return GREEDY if kept is None else drawing.as_sent(kept)


class SealedProfile(ServingProfile, kw_only=True):
    """A profile with the content of the file that is written beside it."""

    companion: bytes


def _contradictions(profile: ServingProfile) -> Iterator[tuple[str, str]]:
    """Yield the key of a value that does not fit the others, and what is wrong with it."""
    engine, cap = profile.engine, profile.decision.max_num_seqs
    for name, absent in {"model": "", "tokenizer": "the model's"}.items():
        if not re.match("[^-]", str(engine.get(name) or absent)):
            yield f"engine.{name}", "must be a name, and no flag"
    bounds = {
        "max_num_seqs": (0, cap, cap),
        "max_num_active_seqs": (cap, cap, cap),
        "max_num_batched_tokens": (0, cap, MOST_TOKENS),
        "max_model_len": (1, 1, MOST_TOKENS),
    }
    for name, (default, least, most) in bounds.items():
        value = engine.get(name, default)
        if type(value) is not int or not least <= value <= most:
            yield f"engine.{name}", f"is no number that fits decision.max_num_seqs {cap}"
    for fault in drawing.faults(profile.provenance.sampling or {}):
        yield "provenance.sampling", fault


# Sealed, written and read

_RERUN = "Restore the file as tuner wrote it, or run tuner sweep again."
_IN_A_LINE = {"baseline", "front_end", "admission", "validity", "provenance"}
_HEAD = "Serving profile. Do not edit: its digest covers every value, comments excepted."


def seal(profile: ServingProfile, evidence: bytes = b"") -> ServingProfile:
    """Return a profile under its own digest, with the content of the file beside it. Raises
    ProfileError if its sections contradict each other."""
    content = content_of(profile)
    # no measurement earns more than six digits, and fewer read better
    data = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.6g}"))
    data |= {"engine": content["engine"], "evidence": _sha256(evidence) if evidence else None}
    data["digest"] = digest_of(data)
    sealed = _checked(data, source="serving profile")
    if not evidence:
        return sealed
    return SealedProfile(**msgspec.structs.asdict(sealed), companion=evidence)


def digest_of(content: Mapping[str, object]) -> str:
    rest = {key: value for key, value in content.items() if key != "digest"}
    return _sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def content_of(profile: Struct) -> dict[str, Any]:
    """Return a profile, or a part of one, as JSON content."""
    result: dict[str, Any] = msgspec.to_builtins(profile, str_keys=True)
    result.pop("companion", None)
    return result


def dump(profile: ServingProfile) -> str:
    """Return the profile as YAML that ``parse`` reads back to an equal profile. On top stands what
    it says, in comments."""
    from tuner.profile.summary import block_of, facts_of  # noqa: PLC0415 - which reads profiles

    words = [*block_of(profile).lines(), *facts_of(profile)]
    head = "".join(f"# {printable(line)}".rstrip() + "\n" for line in (_HEAD, "", *words))
    return head + "".join(f"{line}\n" for line in _page(content_of(profile)))


def _page(content: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield the lines of a page that a person reviews: a line for each value of a section, for each
    row of a list, and for each of the sections that programs read."""
    for key, value in content.items():
        if isinstance(value, dict) and value and not indent and key not in _IN_A_LINE:
            yield f"{key}:"
            yield from _page(value, "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{key}:"
            yield from (f"{indent}- {yaml_strict.dump(row, is_flow=True)}" for row in value)
        else:
            yield f"{indent}{key}: {yaml_strict.dump(value, is_flow=True)}"


def parse(text: str, *, source: str) -> ServingProfile:
    """Read a profile that ``dump`` wrote. Raises ProfileError with the place and the cure."""
    root = yaml_strict.compose(text, source=source, error=ProfileError)
    data = yaml_strict.construct(root, source=source, error=ProfileError) if root else None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ProfileError(
            f"{source}: not a serving profile: schema_version is missing",
            hint="Give the file that tuner sweep wrote; the file to write into comes second.",
        )
    profile = _checked(data, source=source)
    if profile.digest != digest_of(data):
        raise ProfileError(
            f"{source}: digest: does not fit the content: a value was edited", hint=_RERUN
        )
    return profile


def _checked(data: Mapping[str, Any], *, source: str) -> ServingProfile:
    """Return the profile of JSON content. Raises ProfileError with the key that is wrong."""
    try:
        profile = msgspec.convert(data, ServingProfile)
    except msgspec.ValidationError as problem:
        fault, _, path = str(problem).partition(" - at `$")
        key = re.sub(r"\[(\w+)\]", r".\1", path.strip(".`")) or "profile"
        raise ProfileError(f"{source}: {key}: {fault}", hint=_RERUN) from None
    for key, fault in _contradictions(profile):
        raise ProfileError(f"{source}: {key}: {fault}", hint=_RERUN)
    return profile


def load(path: Path) -> ServingProfile:
    text = yaml_strict.read(
        path, error=ProfileError, missing="Check the path, or write one with tuner sweep."
    )
    return parse(text, source=str(path))


def beside(path: Path) -> Path:
    """Return where the evidence of a profile lies."""
    return path.with_suffix(".evidence")


def evidence_of(profile: ServingProfile, path: Path) -> bytes:
    """Return the content of the file beside a profile. Raises ProfileError where it is not there,
    or not this profile's."""
    if isinstance(profile, SealedProfile):
        return profile.companion
    why = "is not the one that this profile was written with"
    try:
        content = files.read_regular(beside(path), MOST_EVIDENCE_BYTES)
    except OSError as problem:
        content, why = b"", (problem.strerror or "cannot be read").lower()
    if _sha256(content) != profile.evidence:
        raise ProfileError(
            f"{beside(path)}: {why}",
            hint="Copy it from where the profile came from: sweep writes it beside every profile.",
        )
    return content


def check_output(output: Path) -> None:
    """Raise TargetError unless a profile may be written there: over nothing, or over an older one,
    which its own run directory still has."""
    old = files.content(files.check_writable(output))
    if old is not None and b"schema_version:" not in old[:4096]:
        raise TargetError(
            f"{output}: is there already and is no serving profile", hint="Choose another -o."
        )


def save(
    profile: ServingProfile,
    path: Path,
    write: Callable[[Path, bytes], None] = files.write_atomically,
) -> None:
    """Write the profile completely or not at all, its evidence first. Raises TargetError."""
    if isinstance(profile, SealedProfile):
        write(beside(path), profile.companion)
    write(path, dump(profile).encode())


def keep(profile: ServingProfile, run_dir: Path) -> None:
    """Write the profile of a run into its folder. Raises TargetError."""
    save(profile, run_dir / "profile.yaml", files.write_own)
