"""The serving profile: a page of YAML that says what to run, and what that rests on.

The structs are the page, and the object of ``tuner sweep --json``. Times are in milliseconds. A
profile is strict: unknown keys, wrong types and edited numbers are refused by their key. What
`plan`, `watch` and `verify` need besides lies beside it (``profile.evidence``).
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from tuner.engines import sampling as drawing
from tuner.engines.sampling import GREEDY, Sampling
from tuner.errors import ProfileError, TargetError
from tuner.system import files, yaml_strict
from tuner.system.printable import printable
from tuner.traffic.constants import VerdictKind
from tuner.traffic.slo import Slo

Number = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Limit = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Seqs = Annotated[int, Meta(ge=1)]
Range = tuple[Number, Number]
Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]

MOST_EVIDENCE_BYTES = 1 << 20
"""Of the file beside a profile: five times what a sweep keeps."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a profile."""


class SpreadSection(Section, frozen=True, kw_only=True):
    """The spread of a latency over the requests, in milliseconds."""

    mean: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number


class KvCacheUsageSection(Section, frozen=True, kw_only=True):
    """Used share of the KV-cache blocks; the mean is over time."""

    mean: Fraction
    p99: Fraction
    peak: Fraction


class Binds(Section, frozen=True, kw_only=True):
    """Share of the engine's busy time in which a request waited, by what it waited for first."""

    slots: Fraction
    kv_blocks: Fraction
    token_budget: Fraction


class CapNumbers(Section, frozen=True, kw_only=True):
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


class MeasuredNumbers(CapNumbers, frozen=True, kw_only=True):
    """The same, measured in the windows that were replayed."""

    cut: bool
    """Cut short, because it had lost for certain."""

    blocks: Count
    """How many windows were replayed, repeats included."""


class CurveStep(CapNumbers, frozen=True, kw_only=True):
    """One step of the curve: the numbers are the twin's for the whole part that was tuned for, or
    measured in the windows where the twin did not decide."""

    max_num_seqs: Seqs
    cut: bool
    """Cut short when it was replayed, because it had lost for certain."""

    source: Literal["measured", "twin", "both"]
    """``both``: the numbers are the twin's, and ``measured`` stands beside them."""

    intervals: dict[str, Range]
    """Name of a number, such as ``goodput_rps`` or ``tpot_p95_ms`` → its 95 % interval."""

    measured: MeasuredNumbers | None


class Predicted(CapNumbers, frozen=True, kw_only=True):
    """The twin's numbers of the chosen value at ``load`` times the trace's rate."""

    load: Limit
    intervals: dict[str, Range]
    """Again: the same traffic on a fresh engine."""


class CheckSection(Section, frozen=True, kw_only=True):
    """The twin against the confirming replay, number by number."""

    unseen: bool
    """Of windows that the ladder had not replayed."""

    numbers: dict[str, tuple[float, float, float, float]]
    """Name of a number → the twin's at the speed that the engine had, the ends of what it may be
    off, and what was measured."""

    @property
    def held(self) -> int:
        return sum(low <= measured <= high for _, low, high, measured in self.numbers.values())


class Promise(CapNumbers, frozen=True, kw_only=True):
    """The numbers of the choice at ``load`` times the trace's rate.

    Where there was a confirming replay of some windows, they are as it measured them. What is
    promised of all of the traffic is ``predicted``; where that is empty, these numbers are.
    """

    load: Limit
    source: Literal["confirming run", "ladder", "twin"]
    predicted: list[Predicted]
    """By the twin for the whole part, at the recorded load and with headroom."""

    checked: CheckSection | str | None = None
    """The twin against the replay that confirmed the choice; in words why none did, and what does;
    None where there is no twin to check."""

    @property
    def record(self) -> CheckSection | None:
        """The check, where a replay confirmed the choice."""
        return self.checked if isinstance(self.checked, CheckSection) else None

    @property
    def headroom(self) -> float:
        """Times the recorded load that the choice was made for besides; 1 without any."""
        return max((each.load for each in self.predicted), default=1.0)


class Baseline(Section, frozen=True, kw_only=True):
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


class Admission(Section, frozen=True, kw_only=True):
    """Limits on what a server lets in, as engine arguments; off unless `tuner apply` is asked."""

    max_num_queued_tokens: Seqs
    max_num_queued_reqs: Seqs
    reasons: list[str]
    """Where each comes from."""


class FrontEndSection(Section, frozen=True, kw_only=True):
    """The front end of the server that confirmed: see ``twin.front_end``."""

    contention: Limit
    delay_ms: Number


class SloSection(Section, frozen=True, kw_only=True):
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
        limits = (self.ttft_ms, self.ttft_ms_per_input_token or 0.0, self.tpot_ms, self.e2el_ms)
        ttft_s, per_token_s, tpot_s, e2el_s = (None if ms is None else ms / 1e3 for ms in limits)
        return Slo(ttft_s, per_token_s or 0.0, tpot_s, e2el_s, self.derived)


class RequirementSection(Section, frozen=True, kw_only=True):
    """A requirement of the choice, in the words of ``--require``. Times are in seconds."""

    text: str
    at_worst: Number | None
    """What 95 % of the twin's draws stay on the good side of; None where it did not decide."""

    measured: Number | None
    """In the confirming replay at its load."""

    kept: bool


class Decision(Section, frozen=True, kw_only=True):
    verdict: VerdictKind
    max_num_seqs: Seqs
    interval: tuple[Seqs, Seqs]
    confidence: Fraction
    reason: str
    busy: str | None = None
    """By what it was seen that others used the machine meanwhile; None where nobody did."""

    objective: str
    slo: SloSection
    requirements: list[RequirementSection] = []
    """What was required besides."""

    @property
    def broken(self) -> list[RequirementSection]:
        return [requirement for requirement in self.requirements if not requirement.kept]


class Validity(Section, frozen=True, kw_only=True):
    """For which traffic the profile holds."""

    peak_concurrency: Count | None
    """Most requests in flight during the replay at the chosen value."""

    validated_load: Limit
    headroom_attainment: Fraction | None = None
    """What the choice served within the SLO where windows were replayed with the headroom, at most
    where that was cut; None where none were."""

    trace_digest: str
    window: str
    """The part of the trace that was tuned for, START+LENGTH."""

    windows: list[str]
    """What was replayed of it."""

    arrival_rate_rps: Number
    retune_when: list[str]


class EngineSeconds(Section, frozen=True, kw_only=True):
    starts: Number
    replay: Number


class Provenance(Section, frozen=True, kw_only=True):
    """The provenance of the numbers."""

    engine: Literal["vllm", "serve", "sim"]
    """What was measured on: vLLM in tuner's own process, vLLM behind a server, or a simulation."""

    device: dict[str, Any]
    versions: dict[str, str]
    environment: dict[str, str] | None = None
    """The variables that change how an engine computes; None for a simulation."""

    model: str
    model_digest: str | None
    given: list[str] = []
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


class ServingProfile(Section, frozen=True, kw_only=True):
    schema_version: Literal[1] = 1
    engine: dict[str, Any]
    """vLLM's argument names → values, all meant for production."""

    decision: Decision
    baseline: Baseline | None = None
    """None where nothing is known of what is set now."""

    curve: list[CurveStep]
    promise: Promise
    front_end: FrontEndSection | None = None
    """None where no server confirmed."""

    admission: Admission | None
    """None where the SLO has no limit on the TTFT, or the windows alone decided."""

    validity: Validity
    provenance: Provenance
    evidence: Digest | None
    """Of the file beside it, which holds the twin; None where the windows alone decided."""

    digest: Digest
    """Over the canonical JSON of everything else."""

    @property
    def model(self) -> str:
        return str(self.engine["model"])

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request. Raises ProfileError where the profile does not say."""
        result = self.engine.get("max_model_len")
        if type(result) is not int or result < 1:
            raise ProfileError(
                f"engine.max_model_len: is {str(result)[:40]!r}, no number of tokens",
                hint="Sweep again: tuner writes what the engine came to.",
            )
        return result

    @property
    def sampling(self) -> Sampling:
        """The sampling by which it was measured; what is compared with it samples alike."""
        kept = self.provenance.sampling
        return GREEDY if kept is None else drawing.as_sent(kept)


class SealedProfile(ServingProfile, frozen=True, kw_only=True):
    """A profile with the content of the file that is written beside it."""

    companion: bytes


# What no single field can show


def _contradictions(  # noqa: C901, PLR0912 - one fault after the other
    profile: ServingProfile,
) -> Iterator[tuple[str, str]]:
    """Yield the key of a value, and what is wrong with it."""
    engine, decided = profile.engine, profile.decision.max_num_seqs
    for name in engine:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            yield f"engine.{name}", "is not spelt like a vLLM engine argument"
    if not isinstance(engine.get("model"), str) or not engine["model"]:
        yield "engine.model", "must name a model"
    for name in ("model", "tokenizer"):
        if str(engine.get(name, "")).startswith("-"):
            yield f"engine.{name}", "begins with a hyphen, as flags do"
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if type(value := engine.get(name)) is not int or value < 1:
            yield f"engine.{name}", "must be a whole number of at least 1"
        elif name == "max_num_seqs" and value != decided:
            yield f"engine.{name}", f"is {value}, but decision.max_num_seqs is {decided}"
        elif value < decided:
            yield f"engine.{name}", f"is {value}, less than max_num_seqs {decided}"
    if engine.get("max_num_active_seqs") not in (None, decided):
        yield "engine.max_num_active_seqs", f"must be max_num_seqs ({decided}) or absent"
    low, high = profile.decision.interval
    if low > high:
        yield "decision.interval", f"begins at {low}, above its end {high}"
    for place, (below, step) in enumerate(pairwise(profile.curve), start=1):
        if below.max_num_seqs >= step.max_num_seqs:
            fault = f"is {step.max_num_seqs} after {below.max_num_seqs}: steps must ascend"
            yield f"curve.{place}.max_num_seqs", fault
    for fault in drawing.faults(profile.provenance.sampling or {}):
        yield "provenance.sampling", fault


# Sealed, written and read

_RERUN = "Restore the file as tuner wrote it, or run tuner sweep again."
_IN_A_LINE = {"baseline", "front_end", "admission", "validity", "provenance"}
_HEAD = "Serving profile. Do not edit: its digest covers every value, comments excepted."


def seal(*, evidence: bytes = b"", **sections: Any) -> ServingProfile:  # noqa: ANN401 - its fields
    """Put the sections together under their digest, with the content of the file beside it. Raises
    ProfileError if they contradict."""
    of_evidence = _sha256(evidence) if evidence else None
    unsealed = ServingProfile(**sections, evidence=of_evidence, digest="")
    data = _rounded(msgspec.to_builtins(unsealed, str_keys=True))
    profile = _checked({**data, "digest": digest_of(data)}, source="serving profile")
    if not evidence:
        return profile
    return SealedProfile(**msgspec.structs.asdict(profile), companion=evidence)


def resealed(
    profile: ServingProfile,
    *,
    evidence: bytes = b"",
    **changes: Any,  # noqa: ANN401 - its fields
) -> ServingProfile:
    """Return a profile with other sections, under its own digest."""
    sections = msgspec.structs.asdict(profile)
    for name in ("evidence", "digest", "companion"):
        sections.pop(name, None)
    return seal(evidence=evidence, **sections | changes)


def digest_of(content: Mapping[str, object]) -> str:
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _sha256(text.encode("ascii"))


def _sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON content with six digits: no measurement earns more, and fewer read better."""
    if isinstance(value, dict):
        return {key: each if key == "engine" else _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict) and value and not indent and key not in _IN_A_LINE:
            yield f"{key}:"
            yield from _page(value, "  ")
        elif isinstance(value, list) and isinstance(first, dict):
            yield f"{indent}{key}:"
            yield from (f"{indent}- {yaml_strict.dump(row, is_flow=True)}" for row in value)
        elif isinstance(first, str):
            yield from (f"{indent}{line}" for line in yaml_strict.dump({key: value}).splitlines())
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
    for key in _not_finite(data):
        raise ProfileError(f"{source}: {key}: is no finite number", hint=_RERUN)
    try:
        profile = msgspec.convert(data, ServingProfile)
    except msgspec.ValidationError as problem:
        fault, _, path = str(problem).partition(" - at `$")
        key = re.sub(r"\[(\w+)\]", r".\1", path.strip(".`")) or "profile"
        fault = fault.replace("Object contains", "has").replace("Object missing", "lacks")
        raise ProfileError(f"{source}: {key}: {fault[0].lower()}{fault[1:]}", hint=_RERUN) from None
    for key, fault in _contradictions(profile):
        raise ProfileError(f"{source}: {key}: {fault}", hint=_RERUN)
    return profile


def _not_finite(value: object, key: str = "") -> Iterator[str]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in pairs:
            yield from _not_finite(each, f"{key}.{name}".lstrip("."))
    elif isinstance(value, float) and not math.isfinite(value):
        yield key


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
    at, content = beside(path), b""
    try:
        if at.stat().st_size <= MOST_EVIDENCE_BYTES:
            content = files.read_regular(at)
        why = "is not the one that this profile was written with"
    except FileNotFoundError:
        why = "no such file"
    except OSError as problem:
        why = f"cannot be read: {problem.strerror or problem}"
    if content and _sha256(content) == profile.evidence:
        return content
    raise ProfileError(
        f"{at}: {why}",
        hint="Copy it from where the profile came from: sweep writes it beside every profile.",
    )


def check_output(output: Path, *, force: bool | None) -> None:
    """Raise TargetError unless a profile may be written there: over nothing, or over an older one,
    which its own run directory still has.

    ``force`` is what the user said of writing over anything; None where nobody can.
    """
    path = files.resolve(output)
    files.check_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise TargetError(f"{path.parent}: must not be written", hint="Choose another -o.")
    old = files.content(path)
    if old is not None and not force and b"schema_version:" not in old[:4096]:
        or_else = "" if force is None else ", or overwrite it with --force"
        raise TargetError(
            f"{output}: is there already and is no serving profile",
            hint=f"Choose another -o{or_else}.",
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
