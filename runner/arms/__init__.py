"""The arms: ways to run the same workload. One file an arm."""

from runner.arms.arm import Arm
from runner.arms.live_kv import LiveKv
from runner.arms.live_kv_again import LiveKvAgain
from runner.arms.llama_cpp_python import LlamaCppPython
from runner.arms.llama_server import LlamaServer
from runner.arms.llama_server_cold import LlamaServerCold
from runner.arms.reprefill import Reprefill
from runner.arms.slowed import LiveKvSlowed5, LiveKvSlowed20

ARMS: dict[str, type[Arm]] = {
    arm.name: arm
    for arm in (
        LiveKv,
        LiveKvAgain,
        LiveKvSlowed5,
        LiveKvSlowed20,
        Reprefill,
        LlamaServer,
        LlamaServerCold,
        LlamaCppPython,
    )
}
"""Every arm by its name."""

__all__ = ["ARMS", "Arm"]
