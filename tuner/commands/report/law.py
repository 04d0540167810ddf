"""Decode time by actual batch: as measured, and as the law has it. Pure."""

import math
from collections.abc import Sequence

import numpy as np

from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Area, Chart, Dots, Item, Line
from tuner.commands.report.drawing.page import Cell, Figure, PageSection, Table
from tuner.profile.stored_twin import StoredTwin
from tuner.replay.iterations import BatchTime

MOST_SAID = 12
"""Batch sizes that are named to whoever cannot see the chart."""


def law_section(twin: StoredTwin | None, seen: Sequence[BatchTime]) -> PageSection | None:
    """Return how long an iteration takes by how many sequences decode; None without any number."""
    if twin is None and not seen:
        return None
    note = "How long an iteration takes that decodes so many: what a slot more costs everyone."
    figure = _figure(twin, seen)
    if twin is None:
        return PageSection("Decode time", note, [[figure]])
    law = twin.law
    facts: list[list[Cell]] = [
        ["a prompt token more", _told(law.prefill_token_s)],
        ["a prompt more", _told(law.prefill_seq_s)],
        ["a thousand tokens of context more", _told(1e3 * law.context_token_s)],
        ["the same, for a thousand prompt tokens", _told(1e6 * law.prefill_context_s)],
        [
            "largest batch that was seen",
            f"{twin.extrapolated_from:,}; beyond it the law is a guess",
        ],
    ]
    table = Table("What else an iteration costs", (), facts, is_facts=True)
    return PageSection("Decode time", note, [[figure], table])


def _figure(twin: StoredTwin | None, seen: Sequence[BatchTime]) -> Figure:
    items: list[Item] = []
    sizes, shown = np.zeros(0), list[float]()
    if twin is not None:
        most = max([twin.extrapolated_from, *(one.decode_seqs for one in seen)])
        known = np.arange(1, most + 1)
        sizes, middle = known.astype(float), twin.law.up_to(most).decode_s[known]
        laws = np.array([law.up_to(most).decode_s[known] for law in twin.laws] or [middle])
        low, high = np.quantile(laws, (0.025, 0.975), axis=0)
        items += [Area(sizes, low, high, look="accent"), Line(sizes, middle, "law", look="accent")]
        shown += [*middle.tolist(), *high.tolist()]
    batches, medians = [float(one.decode_seqs) for one in seen], [one.median_s for one in seen]
    if seen:
        told = [
            f"{one.decode_seqs}: {axes.seconds(one.median_s)}, {one.iterations:,} iterations"
            for one in seen
        ]
        items.append(Line(*_stairs(batches, medians), look="plain"))
        items.append(Dots(batches, medians, told, look="plain"))
    some = seen[:: max(1, math.ceil(len(seen) / MOST_SAID))]
    listed = "; ".join(f"{one.decode_seqs}: {axes.seconds(one.median_s)}" for one in some)
    label = "sequences that decode together"
    chart = Chart(
        said=f"Decode time by batch. {f'Medians: {listed}' if seen else 'By the law'}.",
        x=axes.linear([0.0, *batches, *sizes.tolist()], axes.whole, label=label),
        y=axes.linear([*shown, *medians], axes.seconds),
        items=items,
    )
    note = " and ".join(
        [
            *(["grey: the median at each batch size that was seen"] if seen else []),
            *(["blue: the law, with its 95 % band"] if twin is not None else []),
        ]
    )
    return Figure("Decode time by actual batch", chart, note)


def _stairs(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return a line that rises where a batch grows by one."""
    found_x, found_y = [], []
    for one, value in zip(x, y, strict=True):
        found_x += [one - 0.5, one + 0.5]
        found_y += [value, value]
    return found_x, found_y


def _told(value_s: float) -> str:
    return f"{value_s * 1e6:,.3g} us" if value_s < 1e-3 else f"{value_s * 1e3:,.3g} ms"
