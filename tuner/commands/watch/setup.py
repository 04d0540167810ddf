"""What the options of ``tuner watch`` mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuner.errors import InputError, ProfileError, UsageError
from tuner.live import server as live_server
from tuner.live.server import LiveServer
from tuner.live.watch.drift import reference
from tuner.live.watch.promised import Promised, speed_sd_of
from tuner.live.watch.scraper import ScrapedServer
from tuner.live.watch.windows import KEPT_STEPS
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import model_mismatch
from tuner.profile.stored_twin import restored
from tuner.rollout import difference
from tuner.traffic.window import parse_duration_s

FOREVER = "forever"
LEAST_STEPS = 2
RUN_IN_S = 60.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The command line, as given."""

    profile: Path
    url: str
    canary: str | None
    for_: str
    every: str
    window: str
    tolerance: float
    served_model: str | None
    fail_on: Literal["re-tune", "drifting"]
    rollback: Path | None
    run_dir: Path | None
    metrics_port: int | None
    seed: int
    json: bool


@dataclass(frozen=True, slots=True)
class Times:
    for_s: float
    every_s: float
    window_s: float

    @property
    def run_in_s(self) -> float:
        """Of scrapes before a window that the twin is given too, so that it begins as full as the
        server."""
        return max(RUN_IN_S, self.window_s)


def times_of(options: WatchOptions) -> Times:
    """Return the times of a watch in seconds. Raises UsageError, also for what cannot be both."""
    if options.canary is not None and options.fail_on != "re-tune":
        raise UsageError(
            f"--fail-on {options.fail_on} and --canary exclude each other",
            hint="A canary is promoted, rolled back or undecided: it exits with 0, 6 or 5.",
        )
    every_s = parse_duration_s(options.every, option="--every")
    window_s = parse_duration_s(options.window, option="--window")
    for_s = math.inf if options.for_ == FOREVER else parse_duration_s(options.for_, option="--for")
    if window_s < LEAST_STEPS * every_s:
        raise UsageError(
            f"--window {options.window}: less than {LEAST_STEPS} times --every {options.every}",
            hint="A window needs several readings: --every 2s --window 10s.",
        )
    if for_s < window_s:
        raise UsageError(
            f"--for {options.for_}: shorter than one window of {options.window}",
            hint="A verdict takes a dozen windows at least: --for 30m.",
        )
    times = Times(for_s, every_s, window_s)
    least_s = (times.run_in_s + window_s) / (KEPT_STEPS - 1)
    if every_s < least_s:
        raise UsageError(
            f"--every {options.every}: more readings than a watch remembers of --window "
            f"{options.window}",
            hint=f"Give --every {math.ceil(least_s)}s, or a shorter --window.",
        )
    return times


def promised_of(profile: ServingProfile, options: WatchOptions) -> Promised:
    """Return what is watched. Raises ProfileError for a profile without a twin."""
    if profile.twin is None:
        raise ProfileError(
            f"{options.profile}: twin: is null: the windows alone decided this profile",
            hint="Sweep again; only a twin can say what today's traffic should give.",
        )
    twin = restored(profile.twin, source=str(options.profile))
    agreement = profile.promise.agreement
    return Promised(
        twin=twin,
        slo=profile.decision.slo.slo,
        max_num_seqs=profile.decision.max_num_seqs,
        caps=tuple(step.max_num_seqs for step in profile.curve),
        reference=reference(
            twin,
            captured_rps=profile.validity.arrival_rate_rps,
            validated_load=profile.validity.validated_load,
        ),
        speed_sd=speed_sd_of(twin, None if agreement is None else agreement.slower_limit),
        tolerance=options.tolerance,
    )


@dataclass(frozen=True, slots=True)
class Beforehand:
    """What to know before a watch begins."""

    warnings: list[str]
    untold: list[str]
    """The profile's arguments that the server does not tell."""


def beforehand(
    profile: ServingProfile, servers: Sequence[ScrapedServer], options: WatchOptions
) -> Beforehand:
    """Return what the servers say of themselves. Raises InputError where one serves another model.

    With a canary the arguments are the canary's, which should run the profile.
    """
    warnings, untold = list[str](), list[str]()
    if (said := profile.provenance.of_ranks) is not None:
        warnings.append(f"{said}: watch one rank's own address, a server's sum is another load")
    verdict = profile.decision.verdict
    if verdict in {"overloaded", "inconclusive"}:
        warnings.append(f"the profile's verdict is {verdict}: what it promises is little")
    for server in servers:
        here = _asked(server)
        if here is None:
            continue
        if (doubt := check_model(profile, server, options, here)) is not None:
            warnings.append(doubt)
        if server is servers[-1]:
            warnings += _differences(profile, here, server.url)
            untold = difference.untold(profile, here.arguments, served=here.served)
    return Beforehand(warnings, untold)


def check_model(
    profile: ServingProfile,
    server: ScrapedServer,
    options: WatchOptions,
    here: LiveServer | None = None,
) -> str | None:
    """Raise InputError where the server was started with another model; return a doubt in words
    where it only calls its model otherwise."""
    here = _asked(server) if here is None else here
    if here is None:
        return None
    other = model_mismatch(profile, here.served, model=options.served_model)
    if other is None:
        return None
    if other.is_sure:
        raise InputError(
            f"{server.url}: serves {other.words}",
            hint=f"Give the profile that was made for {other.found}, or another address.",
        )
    return f"{server.url} serves {other.words}"


def _asked(server: ScrapedServer) -> LiveServer | None:
    try:
        return live_server.ask(server.url)
    except InputError:  # a gateway may pass on nothing but /metrics, which was read
        return None


def _differences(profile: ServingProfile, here: LiveServer, url: str) -> list[str]:
    found = difference.of_server(profile, here.arguments, here.version, source=url)
    shown = [
        f"{one.name} {one.other} and not {one.profile}" if one.section == "engine" else one.evidence
        for one in found
    ]
    return [f"{url} runs {', '.join(shown)}: tuner diff says more"] if shown else []
