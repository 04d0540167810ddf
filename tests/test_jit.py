import sys
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


def test_vllm_can_look_at_the_compilers_library() -> None:
    """It reads the ``__dict__`` of whatever has one; a made-up one stops the engine's start."""
    handle = sys.modules["llvmlite.binding.ffi"].lib
    assert not hasattr(handle, "__dict__")
    assert callable(handle.LLVMPY_GetVersionInfo)
