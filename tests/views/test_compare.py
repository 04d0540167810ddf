"""Which engine of a comparison its title speaks of."""

from tuner.runs.compare.compare import Tuned
from tuner.runs.compare.table import ComparisonRow, ComparisonTable
from tuner.views.compare import tuned_row


def test_the_title_is_of_the_cap_that_it_names() -> None:
    caps = {"untuned": 256, "tuned": 8, "profile": 16}
    rows = tuple(ComparisonRow(name, name, cap, None, {}, (), ()) for name, cap in caps.items())
    table = ComparisonTable("recorded", None, rows)
    given = tuned_row(table, Tuned(8, "--max-num-seqs"))
    of_profile = tuned_row(table, Tuned(16, "profile.yaml"))
    assert (given, of_profile) == (rows[1], rows[2])
