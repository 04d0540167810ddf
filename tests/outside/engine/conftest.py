"""The engines that the contract is for."""

from tests.engines.conftest import cramped, roomy, shared

__all__ = ["cramped", "roomy", "shared"]
