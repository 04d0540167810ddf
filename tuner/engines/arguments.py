"""What an engine argument may be. Apart from the seam: who only reads profiles needs no numpy."""

ArgumentValue = str | int | float | bool | None | list[object] | dict[str, object]

WHICH_DEVICE = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
)
"""Environment variables by which engines on two devices of one kind differ."""
