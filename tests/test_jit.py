from typing import Any

from tuner.jit import compiled


def test_a_function_is_compiled_where_nothing_can_be_kept() -> None:
    """Code without a file stands for code in a directory that cannot be written to."""
    namespace: dict[str, Any] = {}
    exec("def twice(x): return x + x", namespace)
    assert compiled(namespace["twice"])(2) == 4


def test_a_division_by_zero_is_a_number_as_in_numpy() -> None:
    def share(part: float, whole: float) -> float:
        return part / whole

    assert compiled(share)(1.0, 0.0) == float("inf")
