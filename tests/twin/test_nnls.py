import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuner.twin.law import nnls


def solved(matrix: list[list[float]], goal: list[float]) -> list[float]:
    a, b = np.array(matrix, float), np.array(goal, float)
    return [float(x) for x in nnls(a.T @ a, a.T @ b)]


def test_columns_of_very_different_size_are_all_found() -> None:
    matrix = [[1, 1e6], [1, 3e6], [1, 5e6]]
    goal = [0.02 + 1e-8 * row[1] for row in matrix]
    assert solved(matrix, goal) == pytest.approx([0.02, 1e-8], rel=1e-4)


numbers = st.floats(-5, 5).map(lambda value: round(value, 2))


@given(
    rows=st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=4, max_size=9),
)
@example(rows=[(0, 1.5, 0, 0), (1.75, 0.95, 0, 0), (0.95, 0, -1, 0), (-2.5, 0, 0, 1)])
def test_no_other_choice_of_coefficients_above_zero_is_better(
    rows: list[tuple[float, float, float, float]],
) -> None:
    """The conditions of Karush, Kuhn and Tucker."""
    table = np.array(rows)
    a, b = table[:, :3], table[:, 3]
    x = nnls(a.T @ a, a.T @ b)
    gradient = a.T @ (b - a @ x)
    size = 1e-4 * (1 + np.abs(table).max() ** 2 * len(rows))
    assert (x >= 0).all()
    assert (gradient <= size).all()
    assert np.abs(gradient[x > 1e-6]).max(initial=0) <= size
