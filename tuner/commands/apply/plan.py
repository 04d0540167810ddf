"""The edit that ``tuner apply`` would make: of which kind of file, and what speaks against it."""

import getpass
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tuner.commands.apply.options import ApplyOptions
from tuner.engines import provenance
from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm import supported
from tuner.errors import ByHandError, GateError, ProfileError, TargetError, TunerError, UsageError
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.rollout import beside, edit, fit, known, monitor
from tuner.rollout.backup import Override
from tuner.rollout.find import KINDS, chosen, kind_of, servers
from tuner.rollout.server import Arguments, Server
from tuner.rollout.words import UnreadableError
from tuner.system import files, yaml_strict

_GPU = re.compile(
    r"nvidia\.com/gpu\.product[\"']?(?:\s*:\s*[\"']?|[\s\S]{0,80}?values[\"']?:[\s\[\"'-]*)([\w.-]+)"
)
DEFAULT_FILE = Path("serve.yaml")
_MARK = "\ufeff"
_ON_THIS_MACHINE = {"vllm-config", "systemd", "env", "supervisor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """An edit of one file, and what that changes."""

    of: ServingProfile
    path: Path
    new: str
    kind: str
    """Of the file, as in ``--to``."""

    next: str
    """What to do with the file, with ``{file}`` for its name."""

    read_from: Path | None = None
    """None: the file is new."""

    old: str = ""
    was: bytes | None = None
    """What is at ``path`` now; None: nothing."""

    before: Arguments = field(default_factory=dict)
    after: Arguments = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reasons: Sequence[str] = ()
    """Where values come from that are not in the profile."""

    override: Override | None = None
    """What speaks against it, and who wrote it all the same."""

    refused: TunerError | None = None
    """Why it is not written, be it without ``--force`` or at all."""

    @property
    def is_needed(self) -> bool:
        return self.was != self.new.encode()


def given(options: ApplyOptions, names: str) -> list[str]:
    """Return which of these options are set, as the user spells them."""
    flags = {"file": "FILE", "profile": "PROFILE"}
    return [
        flags.get(name, f"--{name.replace('_', '-')}")
        for name in names.split()
        if getattr(options, name)
    ]


@dataclass(frozen=True)
class Target:
    """A file to deploy with, and the server in it that is meant."""

    path: Path
    text: str
    kind: str
    at: str = ""

    @property
    def what(self) -> str:
        kind = KINDS[self.kind]["is"] if self.kind else "a file of no known kind"
        patches = beside.patches(self.text) if self.kind == "kustomize" else []
        named = f" ({', '.join(patches)})" if patches else ""
        return f"{self.path}: is {kind}{named}"

    def read(self, text: str) -> list[Server]:
        """Return the servers of the text, as of this file."""
        near = beside.near(self.path.parent)
        try:
            return servers(self.path, text, near, at=self.at, to=self.kind)
        except UnreadableError as problem:
            raise ByHandError(f"{self.what}: {problem}", hint="Paste these flags:") from None

    def line(self, server: Server, needle: str) -> int:
        """Return the line in which an argument, or another part of the text, stands."""
        value = server.arguments.get(needle, needle)
        spelled = str(value[0] if isinstance(value, list) and value else value)
        spelled = re.sub(r"[^ -~].*", "", spelled, flags=re.DOTALL)
        for pattern in (edit.flags(needle), re.escape(needle), re.escape(spelled) or "$"):
            for begin, end in [*server.spans, (0, len(self.text))]:
                if needle and (found := re.search(pattern, self.text[begin:end])):
                    return self.text.count("\n", 0, begin + found.start()) + 1
        begin = server.spans[0][0] if server.spans else 0
        return self.text.count("\n", 0, begin) + 1

    def deployment(self, server: Server, *, model_is: str | None = None) -> fit.Deployment:
        """Return what the file says of the server, and what is known of where it runs."""
        gpus = set(_GPU.findall(self.text))
        version = known.vllm_version(server.image)
        names_image = server.image or self.kind in {"compose", "kubernetes", "kustomize"}
        return fit.Deployment(
            arguments=server.arguments,
            source=str(self.path),
            place=lambda needle: f"{self.path}:{self.line(server, needle)}",
            vllm=version,
            gpu=gpus.pop() if len(gpus) == 1 else None,
            image=None if version or not names_image else server.image,
            machine=_machine() if self.kind in _ON_THIS_MACHINE else None,
            model_is=model_is,
        )


def target_of(to: str | None, path: Path, text: str, at: str = "") -> Target:
    """Return the file as its kind has it. Raises UsageError and TargetError."""
    check_kind(to)
    if is_profile(text):
        raise TargetError(
            f"{path}: is a serving profile, not a file to deploy with",
            hint="tuner apply PROFILE FILE: the profile comes first.",
        )
    return Target(path, text, to or kind_of(path, text), at)


def check_kind(to: str | None) -> None:
    """Raise UsageError for a name that is of no kind of file."""
    if to is not None and to not in KINDS:
        names = ", ".join([*KINDS, *(kind.name for kind in monitor.KINDS)])
        raise UsageError(f"no kind of file {to!r}", hint=f"One of {names}.")


def is_profile(text: str) -> bool:
    """Whether a text is a serving profile."""
    return all(re.search(rf"(?m)^{key}:", text) for key in ("schema_version", "digest", "engine"))


def with_flags(problem: ByHandError, of: ServingProfile) -> ByHandError:
    """Return a refusal to edit a file with the profile's flags, to be pasted."""
    return ByHandError(str(problem), hint=f"{problem.hint} {' '.join(fit.to_paste(of))}")


def read_text(path: Path) -> str | None:
    """Return what is in a file; None where there is none. Raises TargetError."""
    if not files.resolve(path).exists():
        return None
    return yaml_strict.read(path, error=TargetError, missing="Run the command again.")


def plan(options: ApplyOptions) -> Edit:
    """Return the edit, with what speaks against it. Raises ProfileError, TargetError, UsageError,
    and GateError or UndecidedError where there is no edit to show."""
    assert options.profile is not None
    of = profile.load(options.profile)
    fit.check_visible(of)
    if options.model_is is not None and not fit.is_model_of(of, options.model_is):
        raise GateError(
            f"--model-is {options.model_is}: the profile was measured with {of.model}",
            hint="Sweep with the model that is deployed.",
        )
    undecided = fit.undecided(of, source=str(options.profile), force=options.force)
    text = (read_text(options.file) if options.file is not None else None) or ""
    watching = monitor.kind_of(options.to, text)
    if watching is not None:
        if undecided is not None:
            raise undecided
        return _watching(of, watching, options)
    if options.selector is not None:
        names = " or ".join(kind.name for kind in monitor.KINDS)
        raise UsageError("--selector is of what watches servers", hint=f"Use it with --to {names}.")
    try:
        return _edit(of, options, undecided)
    except ByHandError as problem:
        raise with_flags(problem, of) from None


def _edit(of: ServingProfile, options: ApplyOptions, refusal: TunerError | None) -> Edit:
    path = options.output or options.file or DEFAULT_FILE
    source = options.file or path
    if not files.resolve(source).exists():
        if options.file is not None and options.output is not None:
            raise TargetError(f"{source}: no such file", hint="With -o, FILE is only read.")
        return _new(of, path, options, refusal)
    old = read_text(source) or ""
    target = target_of(options.to, source, old.removeprefix(_MARK), *options.at[:1])
    read_from: Path | None = source
    server = _chosen(target, options)
    if source.suffix == ".service" and path.suffix == ".conf":
        own = target.text[slice(*server.spans[0])]
        old, read_from = "", None
        target = target_of("systemd", path, f"[Service]\nExecStart=\nExecStart={own}\n")
        server = _chosen(target, options)
    here = target.deployment(server, model_is=options.model_is)
    found = fit.mismatches(of, here)
    if not options.force:
        refusal = refusal or fit.refusal(of, found)
    wanted = fit.wanted(of, server.arguments, pin=options.pin, live_knob=options.live_knob)
    admitted, reasons = _admission(of, options)
    left = fit.of_the_file(found)
    wanted = {name: value for name, value in (wanted | admitted).items() if name not in left}
    new, after = _edited(target, server, wanted)
    new = old[: old.startswith(_MARK)] + new
    refusal = fit.clash(here, wanted) or refusal
    present = old if path == read_from else read_text(path)
    same = path.exists() and files.resolve(source) == files.resolve(path)
    if not same and present not in (None, new) and not options.force:
        raise TargetError(
            f"{path}: already there",
            hint=f"Edit it in place: tuner apply PROFILE {path}; or overwrite it with --force.",
        )
    despite = [each.words for each in found]
    if not server.proof:
        despite.append(f"nothing in {source} shows that it starts vLLM")
    if options.model_is is not None and (words := fit.model_mismatch(of, here)) is not None:
        despite.append(f"{words}: --model-is {options.model_is}")
    return Edit(
        of=of,
        path=source if same else path,
        new=new,
        kind=target.kind,
        next=f"start: {KINDS[target.kind]['start']}",
        read_from=read_from,
        old=old,
        was=None if present is None else present.encode(),
        before=server.arguments,
        after=after.arguments,
        warnings=[
            *fit.cautions(of, [] if refusal else found, here),
            *beside.overruled(source, target.kind, server.name),
        ],
        reasons=reasons,
        override=_override(of, despite, options),
        refused=refusal,
    )


def _chosen(target: Target, options: ApplyOptions) -> Server:
    return chosen(
        target.read(target.text), target.what, name=options.container, at=target.at,
        is_trusted=options.force,
    )  # fmt: skip


def _edited(target: Target, server: Server, wanted: Arguments) -> tuple[str, Server]:
    try:
        return edit.edited(target.text, server, wanted, target.read)
    except UnreadableError as problem:
        near, why = problem.near or server.near, str(problem)
        variable = edit.variable_of(target.text, server, near)
        dotenv = beside.near(target.path.parent)(".env") or "" if variable else ""
        if line := re.search(rf"(?m)^[ \t]*(?:export )?{variable}=", dotenv) if variable else None:
            why += f": {variable} is set in .env:{dotenv.count(chr(10), 0, line.start()) + 1}"
        place = f"{target.path}:{target.line(server, near)}"
        raise ByHandError(
            f"{place}: {why}, in {KINDS[target.kind]['is']}",
            hint="Write these flags there by hand:",
        ) from None


def _new(of: ServingProfile, path: Path, options: ApplyOptions, refusal: TunerError | None) -> Edit:
    """Return the edit that makes a new config of ``vllm serve``, with every argument."""
    check_kind(options.to)
    if options.to not in {None, "vllm-config"}:
        raise UsageError(
            f"which file? {options.to} is written into one that is there",
            hint=f"tuner apply PROFILE FILE --to {options.to}",
        )
    if path.suffix not in {".yaml", ".yml"}:
        raise TargetError(
            f"{path}: no such file, and a new one must end in .yaml or .yml",
            hint="Check the path.",
        )
    admitted, reasons = _admission(of, options)
    arguments = fit.settings(of, live_knob=options.live_knob) | admitted
    config = {
        ("no-" if value is False else "") + name.replace("_", "-"): value is False or value
        for name, value in arguments.items()
        if value is not None
    }
    here = fit.Deployment(arguments={}, source=str(path), machine=_machine(), is_new=True)
    found = fit.mismatches(of, here)
    refusal = refusal or (None if options.force else fit.refusal(of, found))
    return Edit(
        of=of,
        path=path,
        new=yaml_strict.dump(config),
        kind="vllm-config",
        next=f"start: {KINDS['vllm-config']['start']}",
        after=arguments,
        warnings=fit.cautions(of, [] if refusal else found),
        reasons=reasons,
        override=_override(of, [each.words for each in found], options),
        refused=refusal,
    )


def _watching(of: ServingProfile, kind: monitor.Kind, options: ApplyOptions) -> Edit:
    """Return the edit of a file that watches servers: it is tuner's own as a whole."""
    for name in given(options, "at container model_is pin live_knob admission_limits"):
        raise UsageError(
            f"{name} and {kind.name} exclude each other",
            hint=f"{name} is of a server's own file; {kind.name} only watches it.",
        )
    if options.file is not None and options.output is not None:
        raise UsageError(
            f"-o and FILE exclude each other: {kind.name} is written whole",
            hint=f"tuner apply PROFILE --to {kind.name} {options.output}",
        )
    matchers = "" if options.selector is None else monitor.selector(options.selector)
    path = options.output or options.file or Path(kind.file)
    present = read_text(path)
    if present is not None:
        monitor.check_replaceable(present, kind, source=str(path))
    return Edit(
        of=of,
        path=path,
        new=monitor.render(kind, of, matchers=matchers),
        kind=kind.name,
        next=f"next: {kind.next}",
        read_from=None if present is None else path,
        old=present or "",
        was=None if present is None else present.encode(),
        warnings=fit.cautions(of, []),
        override=_override(of, [], options),
    )


def _admission(
    of: ServingProfile, options: ApplyOptions
) -> tuple[dict[str, ArgumentValue], Sequence[str]]:
    """Return vLLM's admission limits where they are asked for, and where they come from."""
    if not options.admission_limits:
        return {}, ()
    if of.admission is None:
        no_limit = of.decision.slo.ttft_ms is None
        missing = "limit on the TTFT" if no_limit else "law of its step times"
        raise ProfileError(
            f"the profile has no {missing} to derive admission limits from",
            hint="Sweep with --slo ttft=…, on an engine that says how long its iterations take.",
        )
    cap = of.decision.max_num_seqs
    limits: dict[str, ArgumentValue] = {
        "max_num_active_seqs": cap,
        "max_num_queued_reqs": of.admission.max_num_queued_reqs,
        "max_num_queued_tokens": of.admission.max_num_queued_tokens,
    }
    return limits, (f"max_num_active_seqs {cap}: the measured cap", *of.admission.reasons)


def _override(of: ServingProfile, despite: Sequence[str], options: ApplyOptions) -> Override | None:
    """Return what goes on record when something spoke against the edit."""
    if of.decision.verdict == "inconclusive":
        despite = [*despite, fit.verdict(of)]
    if not despite:
        return None
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        user = "unknown user"
    return Override(
        who=f"{user}@{platform.node() or 'unknown machine'}",
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        profile=str(options.profile),
        profile_digest=of.digest,
        despite=list(despite),
    )


def _machine() -> fit.LocalMachine:
    vllm = supported.version_in(provenance.versions())
    device: Mapping[str, object] = {}
    if vllm:
        from tuner.engines import devices  # noqa: PLC0415 - slow to load

        device = devices.device_facts()
    return fit.LocalMachine.of(vllm, device)
