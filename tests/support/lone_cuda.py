"""Arguments as vLLM resolves them on an H200, here: its platform for CUDA, whose driver is made up.

python -m tests.support.lone_cuda '[[ARGUMENTS, SIZE], …]'
"""

# ruff: noqa: E402 - what vLLM is comes before vLLM

import json
import sys
import types

sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("kernels")  # which the CPU build has not

from vllm import platforms
from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability


class H200(CudaPlatformBase):  # type: ignore[misc]
    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(9, device_id)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return f"NVIDIA H200 {device_id}"

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"GPU-{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return (141 << 30) - device_id


platforms._current_platform = H200()  # before anything else of vLLM asks which it is

from tuner.engines.vllm import config as vllm_config


def main(cases: str) -> None:
    found = []
    for arguments, size in json.loads(cases):
        asked = {"model": "tuner:tiny", "load_format": "dummy", **arguments}
        limits = vllm_config.server_limits(asked)
        one = vllm_config.configure(asked, max_num_seqs=size, limits=limits)
        of_another = vllm_config.configure(asked, max_num_seqs=20, limits=limits).arguments
        deployed = vllm_config.deployed(of_another, one, limits)
        how = vllm_config.how(one.config)
        found.append({**one.arguments, "how": how, "deployed": deployed})
    print(json.dumps(found))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(sys.argv[1])
