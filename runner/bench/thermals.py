"""Clocks, temperatures and who else is on the GPU: the machine's state at one moment.

A hot machine clocks down, and a second process on a GPU shares it. Both are read before and after
the measured part, never during it. What a system does not tell is None.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil

SLOWDOWN: Final = "slowdown"
"""In every reason that means the GPU protected itself; the void rule looks for it."""

# Bits of nvmlDeviceGetCurrentClocksEventReasons. Left out: 0x1, the GPU has nothing to do.
_REASONS: Final[Mapping[int, str]] = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: f"hardware {SLOWDOWN}",
    0x10: "sync boost",
    0x20: f"thermal {SLOWDOWN}",
    0x40: f"hardware thermal {SLOWDOWN}",
    0x80: f"power brake {SLOWDOWN}",
    0x100: "display clocks",
}
_CPU_SENSORS: Final = {"coretemp", "k8temp", "k10temp", "zenpower", "x86_pkg_temp", "soc_thermal"}
_HERE: Final = Path("/")


@dataclass(frozen=True)
class MachineState:
    """The machine at one moment. Clocks are MHz, temperatures are degrees Celsius."""

    cpu_mhz: float | None = None
    """Mean over the cores; a virtual machine may be told a constant."""
    temperature_c: float | None = None
    gpu_mhz: float | None = None
    gpu_temperature_c: float | None = None
    gpu_throttle: str | None = None
    """Why the GPU's clock is not free to rise, joined by ``, ``; empty when it is."""
    gpu_slowed_ns: int | None = None
    """For how long heat has ever slowed the GPU; only a difference says something."""
    gpu_other_processes: int | None = None


StateReader = Callable[[], MachineState]


def read_state() -> MachineState:
    """Read this machine's state. Takes milliseconds, the first time in a process more."""
    gpu = _first_gpu()
    return MachineState(
        cpu_mhz=cpu_mhz(),
        temperature_c=cpu_temperature(),
        **(gpu.state() if gpu else {}),
    )


def columns(start: MachineState, stop: MachineState) -> dict[str, Any]:
    """The state's columns of the table ``blocks`` for what lies between two moments."""
    counts = (start.gpu_other_processes, stop.gpu_other_processes)
    return {
        "cpu_mhz_start": start.cpu_mhz,
        "cpu_mhz_end": stop.cpu_mhz,
        "temperature_c_start": start.temperature_c,
        "temperature_c_end": stop.temperature_c,
        "gpu_mhz_start": start.gpu_mhz,
        "gpu_mhz_end": stop.gpu_mhz,
        "gpu_temperature_c_start": start.gpu_temperature_c,
        "gpu_temperature_c_end": stop.gpu_temperature_c,
        "gpu_throttle": _throttle(start, stop),
        "gpu_other_processes": max((n for n in counts if n is not None), default=None),
    }


def _throttle(start: MachineState, stop: MachineState) -> str | None:
    """The reasons at the end, and heat that slowed the GPU in between and is over by then."""
    reasons = [stop.gpu_throttle] if stop.gpu_throttle else []
    before, after = start.gpu_slowed_ns, stop.gpu_slowed_ns
    slowed = before is not None and after is not None and after > before
    if slowed and SLOWDOWN not in (stop.gpu_throttle or ""):
        reasons.append(_REASONS[0x20])
    return ", ".join(reasons) or stop.gpu_throttle


def cpu_mhz(root: Path = _HERE) -> float | None:
    """Mean clock over the cores, MHz."""
    try:
        told = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    # One file for all cores: psutil opens three for every core, and not every kernel is quick.
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", told, re.MULTILINE)]
    if clocks:
        return sum(clocks) / len(clocks)
    try:
        found = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    except (OSError, RuntimeError):  # NotImplementedError is one: this system has none
        return None
    return found.current if found and found.current > 0 else None


def cpu_temperature(sensors: Mapping[str, Iterable[Any]] | None = None) -> float | None:
    """The hottest CPU sensor; `sensors` are psutil's, by the name of their chip."""
    if sensors is None:
        read = getattr(psutil, "sensors_temperatures", None)  # neither on macOS nor on Windows
        sensors = read() if read else {}
    readings = [
        reading.current
        for chip, found in sensors.items()
        if chip in _CPU_SENSORS or "cpu" in chip
        for reading in found
    ]
    # A sensor that could not be read says 0.
    return max((degrees for degrees in readings if degrees > 0), default=None)


class Gpu:
    """One NVIDIA device through NVML."""

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml = nvml
        self._device = device

    def state(self) -> dict[str, Any]:
        """The GPU's part of `MachineState`; a question the driver does not answer is None."""
        nvml = self._nvml
        mhz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        degrees = self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        bits = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons)
        slowed = self._ask(nvml.nvmlDeviceGetViolationStatus, nvml.NVML_PERF_POLICY_THERMAL)
        return {
            "gpu_mhz": None if mhz is None else float(mhz),
            "gpu_temperature_c": None if degrees is None else float(degrees),
            "gpu_throttle": None if bits is None else throttle_reasons(bits),
            "gpu_slowed_ns": None if slowed is None else int(slowed.violationTime),
            "gpu_other_processes": self._others(),
        }

    def _ask(self, query: Callable[..., Any], *arguments: Any) -> Any | None:
        try:
            return query(self._device, *arguments)
        except self._nvml.NVMLError:
            return None

    def _others(self) -> int | None:
        nvml = self._nvml
        lists = [
            self._ask(nvml.nvmlDeviceGetComputeRunningProcesses),
            self._ask(nvml.nvmlDeviceGetGraphicsRunningProcesses),
        ]
        told = [processes for processes in lists if processes is not None]
        if not told:
            return None
        return other_processes({process.pid for processes in told for process in processes})


def throttle_reasons(bits: int) -> str:
    """NVML's reasons in words, joined by ``, ``; empty when the clock is free to rise."""
    return ", ".join(word for bit, word in _REASONS.items() if bits & bit)


def other_processes(
    pids: set[int], ours: set[int] | None = None, known: Callable[[int], bool] = psutil.pid_exists
) -> int:
    """How many of the GPU's processes `pids` are not ours.

    In a container the driver may count pids outside of it, ours too: where we are not listed and
    some pid is of no process here, one of them is taken for us.
    """
    if ours is None:
        me = psutil.Process()
        ours = {me.pid, *(child.pid for child in me.children(recursive=True))}
    others = pids - ours
    disguised = others == pids and any(not known(pid) for pid in others)
    return len(others) - disguised


def open_gpu(nvml: Any | None, variables: Mapping[str, str]) -> Gpu | None:
    """The first device this process may use; None without library, driver or device.

    Args:
        nvml: the module ``pynvml``; None when it is not installed.
        variables: the environment; CUDA_VISIBLE_DEVICES names what this process may use.
    """
    visible = variables.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if nvml is None or visible in ("", "-1"):
        return None
    try:
        nvml.nvmlInit()
        if visible.isdigit():
            device = nvml.nvmlDeviceGetHandleByIndex(int(visible))
        else:
            device = nvml.nvmlDeviceGetHandleByUUID(visible)
    except nvml.NVMLError:
        return None
    return Gpu(nvml, device)


@cache
def _first_gpu() -> Gpu | None:
    # Once a process: starting NVML takes tens of milliseconds.
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        nvml = None
    return open_gpu(nvml, os.environ)
