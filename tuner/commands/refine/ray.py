"""``tuner refine --ray``: the workers that a cluster is asked for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tuner.commands.refine.options import RefineOptions
from tuner.commands.refine.plan import Engines
from tuner.commands.shared.machine import differs
from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.profile.schema import ServingProfile
from tuner.runs.cluster.share import EXECUTOR, RANKS
from tuner.runs.refine.knobs import Space
from tuner.runs.refine.refinement import RefinePlan
from tuner.runs.refine.trial_runner import SimVary, VllmVary

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.runs.cluster.kinds import Description
    from tuner.runs.cluster.site import ClusterSite


def site_of(
    options: RefineOptions, plan: RefinePlan, engines: Engines
) -> "AbstractContextManager[ClusterSite]":
    """Return the nodes that the trials are made on, joined for as long as it is entered."""
    from tuner.runs.cluster.site import ClusterRequest, Work, site_on  # noqa: PLC0415 - imports ray

    profile, vary = plan.profile, engines.vary
    assert options.ray is not None
    simulated = None
    if isinstance(vary, SimVary):
        simulated = (vary.machine.device, vary.machine.versions)
    elif isinstance(vary, VllmVary):
        vary = VllmVary(vary.arguments, vary.sampling)  # a node's log is on the node
    return site_on(
        ClusterRequest(options.ray, options.ray_engines, options.ray_cpus),
        Work(
            arguments=largest(cast("Any", profile.engine), plan.space),
            vary=vary,
            settings=plan.settings,
            start_s=plan.start_s,
            simulated=simulated,
            refuses=lambda kind: None if options.force else _refusal(profile, kind),
        ),
    )


def largest(arguments: Mapping[str, ArgumentValue], space: Space) -> dict[str, ArgumentValue]:
    """Return the arguments of the engine that takes the most of a cluster: a worker gets room for
    that, and serves all others too. Raises UsageError where one size cannot be said."""
    found = dict(arguments)
    for knob in space.knobs:
        if knob.name == EXECUTOR:
            raise UsageError(
                f"--search {EXECUTOR} beside --ray: each needs a place of another kind",
                hint=f"Refine a profile of each {EXECUTOR}.",
            )
        if knob.name in RANKS:
            sizes = [one for one in knob.values if isinstance(one, int)]
            found[knob.name] = max(sizes, default=1)
    return found


def check_ray(options: RefineOptions) -> None:
    """Refuse what goes with --ray alone. Raises UsageError."""
    for name, value in (("engines", options.ray_engines), ("cpus", options.ray_cpus)):
        if value is not None and options.ray is None:
            raise UsageError(f"--ray-{name} is for --ray", hint="Add --ray ADDRESS, or drop it.")


def _refusal(profile: ServingProfile, kind: "Description") -> str | None:
    if (found := differs(profile, kind)) is not None:
        key, was, is_ = found
        return f"{key} is {is_}, the profile was measured with {was}"
    was, is_ = profile.provenance.model_digest, kind.model_digest
    if was is not None and is_ is not None and was != is_:
        return "its files of the model are others than were measured"
    return None
