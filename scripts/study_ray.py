"""Measures what Ray adds to a trial: the same with it and without it, in turns, two at a time.

    python scripts/study_ray.py profiles/translation-tiny-cpu.yaml traces/translation.jsonl
    python scripts/study_ray.py profile.yaml prod.jsonl --engine sim --world world.yaml
    python scripts/study_ray.py --smoke

Two workers of a Ray cluster of this machine, and two plain processes, each with an engine at the
profile's knee that is started once. In turns both trials of a pair are made by the ones and by the
others, beginning with either; a turn ends when the slower of its two trials is in a journal on
disk, as it is in a run. Printed are milliseconds of both, and the ratio with its 95 % interval
(Student's t over the pairs' log ratios). Say so on a quiet machine with four cores or more: on two
the engines that wait still take a share of them.
"""

import argparse
import asyncio
import math
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

import evidence
from study_sweeps import Silent, parsed

from tuner.commands.refine.options import RefineOptions
from tuner.commands.refine.plan import Engines, engines_of, plan_of
from tuner.commands.refine.ray import site_of
from tuner.commands.refine.space import space_of
from tuner.engines import devices
from tuner.engines.sim import virtual_time
from tuner.profile import profile
from tuner.runs import journal
from tuner.runs.cluster.trial_runner import ClusterTrialRunner
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, number
from tuner.runs.refine.outcome import unloaded_of
from tuner.runs.refine.refinement import RefinePlan
from tuner.runs.refine.trial_runner import SEARCH, Build, LocalTrialRunner, TrialRunner, Vary
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import load
from tuner.traffic.workload import Workload, choose_workload, keep_what_fits
from tuner.twin.uncertainty import t_quantile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--engine", choices=("vllm", "sim"), default="vllm")
    parser.add_argument("--world", type=Path)
    parser.add_argument("--step", default="20s", help="how long a trial replays")
    parser.add_argument("--pairs", type=int, default=11)
    given = parsed(
        parser,
        smoke="profiles/translation-tiny-cpu.yaml traces/translation.jsonl --engine sim"
        " --world examples/worlds/article-quiet.yaml --pairs 2",
    )
    options = RefineOptions(
        profile=given.profile, traces=(given.trace,), engine=given.engine, world=given.world,
        budget="1h", step=given.step, headroom=1.0, force=True, ray="local", ray_engines=2,
        ray_cpus=1,
    )  # fmt: skip
    one = profile.load(options.profile)
    trace = load(options.trace)
    requests = [each for each in trace.requests if each.status in {"ok", "aborted"}]
    engines = engines_of(options, one)
    size = trace.header.block_size
    space = space_of(options, one, engines.vary, requests=requests, block_size=size)
    plan = plan_of(options, one, trace, space)
    kept, _ = keep_what_fits(requests, max_model_len=plan.max_model_len)
    assert plan.settings.slo is not None
    workload = choose_workload(
        kept, plan.settings.slo, unloaded_of(one), asked="all", step_s=plan.settings.step_s
    )
    build = Build(number(space.knee[CAP]), number(space.knee[TOKENS]))
    with tempfile.TemporaryDirectory() as name:
        taken = measure(options, plan, engines, workload, build, Path(name), given.pairs)
    report(taken)
    evidence.keep(given.keep, {"seconds": taken}, evidence.of_engines())


def measure(  # noqa: PLR0913, PLR0917 - what is replayed, on what, and how often
    options: RefineOptions,
    plan: RefinePlan,
    engines: Engines,
    workload: Workload,
    build: Build,
    folder: Path,
    pairs: int,
) -> list[tuple[float, float]]:
    plain = [Plain(folder / f"plain{place}", plan, engines, workload, build) for place in (0, 1)]
    try:
        # the cluster believes two engines to have room; a machine of two cores has that
        with site_of(options, plan, engines) as site:
            book = journal.create(folder / "ray", {})
            runner = site.runner(Evidence(book), Silent())
            found = asyncio.run(in_turns(runner, plain, plan.space.knee, workload, build, pairs))
            book.close()
            return found
    finally:
        for each in plain:
            each.stop()


async def in_turns(  # noqa: PLR0913, PLR0917 - as ``measure``
    runner: ClusterTrialRunner,
    plain: "Sequence[Plain]",
    knee: Configuration,
    workload: Workload,
    build: Build,
    pairs: int,
) -> list[tuple[float, float]]:
    async def with_ray() -> float:
        begun_s = monotonic()

        async def one() -> None:
            async with runner.lane() as lane:
                await lane.trial(SEARCH, knee, workload, build)

        await asyncio.gather(one(), one())
        return monotonic() - begun_s

    def without() -> float:
        begun_s = monotonic()
        for each in plain:
            each.begin()
        for each in plain:
            each.wait()
        return monotonic() - begun_s

    try:
        await with_ray()  # the engines start
        without()
        taken = []
        for pair in range(pairs):
            if pair % 2:
                ours_s = await with_ray()
                theirs_s = without()
            else:
                theirs_s = without()
                ours_s = await with_ray()
            taken.append((ours_s, theirs_s))
            line = f"with {ours_s * 1e3:,.0f} ms, without {theirs_s * 1e3:,.0f} ms"
            print(line, file=sys.stderr)  # stdout is shut while Ray may print to it
    finally:
        await runner.stop()
    return taken


def report(taken: Sequence[tuple[float, float]]) -> None:
    logs = [math.log(ours_s / theirs_s) for ours_s, theirs_s in taken]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    t = t_quantile(len(logs) - 1)
    low, high = (math.exp(mean + sign * t * error) - 1 for sign in (-1, 1))
    more_ms = statistics.median(ours_s - theirs_s for ours_s, theirs_s in taken) * 1e3
    print(
        f"Ray adds {math.exp(mean) - 1:+.1%} ({low:+.1%} to {high:+.1%}) a trial over {len(taken)} "
        f"pairs; {more_ms:+,.0f} ms in the median"
    )


class Plain:
    """A process with an engine and a journal, as `tuner refine` is one."""

    def __init__(
        self, folder: Path, plan: RefinePlan, engines: Engines, workload: Workload, build: Build
    ) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawned.Pipe()
        settings = replace(plan.settings)
        knee = dict(plan.space.knee)
        self._process = spawned.Process(
            target=serve,
            args=(theirs, folder, engines.vary, settings, knee, workload, build),
            kwargs={"simulated": engines.is_simulated},
        )
        self._process.start()

    def begin(self) -> None:
        self._pipe.send(True)

    def wait(self) -> None:
        self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(False)
        self._process.join()


def serve(  # noqa: PLR0913, PLR0917 - as ``Plain``
    pipe: Connection,
    folder: Path,
    vary: Vary,
    settings: SweepSettings,
    knee: Configuration,
    workload: Workload,
    build: Build,
    *,
    simulated: bool,
) -> None:
    loop = virtual_time.VirtualTimeLoop if simulated else None
    read = None if simulated else devices.DeviceMeter().read
    local = EngineRunner(vary({}), settings, Evidence(journal.create(folder, {})), Silent(), read)
    trials: TrialRunner = LocalTrialRunner(local, vary)
    with asyncio.Runner(loop_factory=loop) as runner:
        while pipe.recv():
            runner.run(trials.trial(SEARCH, knee, workload, build))
            pipe.send(True)
        runner.run(trials.stop())


if __name__ == "__main__":
    main()
