"""The arms: ways to run the same workload. One file an arm."""

from runner.arms.arm import Arm
from runner.arms.live_kv import LiveKv
from runner.arms.live_kv_again import LiveKvAgain
from runner.arms.reprefill import Reprefill
from runner.arms.slowed import LiveKvSlowed5, LiveKvSlowed20

ARMS: dict[str, type[Arm]] = {
    arm.name: arm for arm in (LiveKv, LiveKvAgain, LiveKvSlowed5, LiveKvSlowed20, Reprefill)
}
"""Every arm by its name."""

__all__ = ["ARMS", "Arm"]
