"""A watch as it goes on: what each moment's scrapes add, and who is told."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from tuner.commands.watch.view import WatchProgress
from tuner.errors import EngineError, InputError
from tuner.live.exporter import WatchExporter
from tuner.live.prometheus import ServerMetrics
from tuner.live.watch.canary import CanaryGate, kv_blocks_said, paired
from tuner.live.watch.journal import WindowJournal
from tuner.live.watch.promised import Promised
from tuner.live.watch.scraper import Absence, Moment, ScrapedServer, Stall
from tuner.live.watch.verdict import Watch
from tuner.live.watch.verdict_text import reason, server_is_why
from tuner.live.watch.windows import ScrapeWindow, WindowMaker

RUN_IN_S = 60.0
"""Of scrapes before a window, for the twin; see ``Times.run_in_s``."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a watch, in seconds: its length, the gap between scrapes, the window."""

    for_s: float
    every_s: float
    window_s: float

    @property
    def run_in_s(self) -> float:
        """Seconds of scrapes before a window that the twin is given too, so that it begins as full
        as the server."""
        return max(RUN_IN_S, self.window_s)


@dataclass(slots=True)
class Side:
    """One server: what it said, and what became of it."""

    server: ScrapedServer
    watch: Watch
    maker: WindowMaker
    absence: Absence
    stall: Stall = field(default_factory=Stall)
    kv_blocks: int | None = None
    """As it says."""

    models: tuple[str, ...] = ()
    """The names by which it counts."""


@dataclass(slots=True)
class WatchSession:
    """A watch as it goes on."""

    sides: list[Side]
    gate: CanaryGate | None
    progress: WatchProgress
    journal: WindowJournal | None
    exporter: WatchExporter | None
    ends_early: bool
    check_again: Callable[[ScrapedServer], object]
    """Raises where a server that was restarted serves another model now."""

    gone: str = ""
    warnings: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.sides[0].watch.verdict if self.gate is None else self.gate.decision

    @property
    def reason(self) -> str:
        return reason(self.sides[0].watch) if self.gate is None else self.gate.reason

    def begin(self) -> None:
        for warning in self.warnings:
            self.progress.warn(warning)
        if self.untold:
            self.progress.say(f"{self.sides[-1].server.url} does not tell {', '.join(self.untold)}")
        for skipped in self.skipped:
            self.progress.say(skipped)
        if self.gate is None:
            self.progress.say(
                "each window (in brackets what is promised at its load), 1.00x is the law's speed:"
            )

    def take(self, moment: Moment) -> bool:
        """Take in what all servers said at one moment; return whether there is no more to do.

        Raises InputError where several servers answer at one address in turn.
        """
        windows: list[ScrapeWindow | None] = []
        for side, scrape in zip(self.sides, moment, strict=True):
            # a canary is gone while the baseline answers: else it is our own network that is
            if side.absence.add(scrape) and (
                side is self.sides[0] or moment[0].engines is not None
            ):
                self._is_gone(side, f"does not answer any more: {side.absence.problem}")
                return True
            if scrape.engines is None:
                self.progress.missed(side.server.url, scrape.problem)
                windows.append(None)
            elif problem := side.stall.add(scrape.at_s, scrape.engines):
                self._is_gone(side, f"hangs: {problem}")
                return True
            else:
                windows.append(self._answered(side, scrape.at_s, scrape.engines))
        if self.gate is None:
            return windows[0] is not None and self._window(windows[0])
        self.gate.restarted(*(side.maker.restarts for side in self.sides))
        if windows[0] is not None and windows[1] is not None:
            self._pair(self.gate, windows[0], windows[1])
        return self.gate.decision != "undecided"

    def _answered(
        self, side: Side, at_s: float, engines: Mapping[str, ServerMetrics]
    ) -> ScrapeWindow | None:
        """Take in what a server said. Raises InputError where several answer in turn."""
        before = side.maker.restarts
        window = side.maker.add(at_s, engines)
        if side.maker.is_several:
            raise InputError(
                f"{side.server.url}: several servers answer in turn, each with its own counts",
                hint="Give the address of one replica, not the one that shares requests out.",
            )
        if side.maker.restarts > before:
            self.progress.say(f"{side.server.url} was restarted")
            self.check_again(side.server)
        _check_names(side, engines)
        config = next((one.cache_config for one in engines.values() if one.cache_config), {})
        side.kv_blocks = kv_blocks_said(
            config, block_size=side.watch.promised.twin.shape.block_size
        )
        return window

    def _window(self, window: ScrapeWindow) -> bool:
        watch = self.sides[0].watch
        seen = watch.add(window)
        self.progress.window(seen, watch)
        if self.journal is not None:
            self.journal.append(
                "window", {**asdict(seen), "verdict": watch.verdict, "beyond": watch.beyond}
            )
        if self.exporter is not None:
            self.exporter.show(watch.verdict, watch.windows, watch.measures())
            if watch.choice is not None:
                self.exporter.show_choice(watch.choice, watch.promised.max_num_seqs)
        return self.ends_early and watch.verdict == "re-tune now" and server_is_why(watch)

    def _pair(self, gate: CanaryGate, baseline: ScrapeWindow, canary: ScrapeWindow) -> None:
        watches = (self.sides[0].watch, self.sides[1].watch)
        found = paired(watches, (baseline, canary), kv_blocks=self.sides[0].kv_blocks)
        effects = gate.add(found.baseline, found.canary, incomparable=found.incomparable)
        seen = [
            watch.account(*one)
            for watch, one in zip(watches, (found.baseline, found.canary), strict=True)
        ]
        self.progress.pair(seen[0], seen[1], gate)
        if self.journal is not None:
            self.journal.append(
                "pair",
                {
                    "baseline": asdict(seen[0]),
                    "canary": asdict(seen[1]),
                    "effects": dict(effects),
                    "verdict": gate.decision,
                },
            )
        if self.exporter is not None:
            self.exporter.show(gate.decision, gate.pairs, gate.measures())

    def _is_gone(self, side: Side, why: str) -> None:
        if self.gate is not None and side is self.sides[1]:
            self.gate.gone = why
        else:
            self.gone = why


def _check_names(side: Side, engines: Mapping[str, ServerMetrics]) -> None:
    names = tuple(sorted({name for one in engines.values() for name in one.models}))
    if side.server.model is None and side.models and names and names != side.models:
        raise EngineError(
            f"{side.server.url}: serves {', '.join(names)} now, {', '.join(side.models)} before",
            hint="What was known until then stands above. Watch it with that model's profile.",
        )
    side.models = side.models or names


def side_of(server: ScrapedServer, promised: Promised, times: Times, seed: int) -> Side:
    """Return a server that nothing is known of yet."""
    return Side(
        server=server,
        watch=Watch(promised, seed=seed),
        maker=WindowMaker(times.window_s, times.every_s, times.run_in_s),
        absence=Absence(times.every_s),
    )
