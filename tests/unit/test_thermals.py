"""Clocks, temperatures and GPU processes, on fake systems and a fake NVML."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from runner.bench import thermals
from runner.bench.contention import Sample, Witness
from runner.bench.thermals import MachineState, columns, open_gpu, throttle_reasons
from runner.records import BLOCKS

COOL = MachineState(
    cpu_mhz=2000.0,
    temperature_c=50.0,
    gpu_mhz=1980.0,
    gpu_temperature_c=40.0,
    gpu_throttle="",
    gpu_slowed_ns=5,
    gpu_other_processes=0,
)


def _of_the_machine() -> list[str]:
    names: list[str] = BLOCKS.names
    return names[names.index("cpu_mhz_start") : names.index("n_requests")]


def test_columns_are_those_of_the_blocks_table() -> None:
    names = _of_the_machine()
    assert list(columns(COOL, COOL)) == names
    assert list(columns(MachineState(), MachineState()).values()) == [None] * len(names)


def test_start_and_end_stand_side_by_side() -> None:
    hot = replace(COOL, cpu_mhz=1500.0, temperature_c=90.0, gpu_mhz=900.0, gpu_temperature_c=85.0)
    found = columns(COOL, hot)
    assert (found["cpu_mhz_start"], found["cpu_mhz_end"]) == (2000.0, 1500.0)
    assert (found["temperature_c_start"], found["temperature_c_end"]) == (50.0, 90.0)
    assert (found["gpu_mhz_start"], found["gpu_mhz_end"]) == (1980.0, 900.0)
    assert (found["gpu_temperature_c_start"], found["gpu_temperature_c_end"]) == (40.0, 85.0)


@pytest.mark.parametrize(
    ("start", "stop", "count"), [(0, 2, 2), (3, 1, 3), (None, 1, 1), (None, None, None)]
)
def test_the_larger_count_of_processes_is_kept(
    start: int | None, stop: int | None, count: int | None
) -> None:
    before = replace(COOL, gpu_other_processes=start)
    after = replace(COOL, gpu_other_processes=stop)
    assert columns(before, after)["gpu_other_processes"] == count


@pytest.mark.parametrize(
    ("slowed", "at_end", "said"),
    [
        (5, "", ""),
        (6, "", "thermal slowdown"),
        (6, "power cap", "power cap, thermal slowdown"),
        (6, "hardware thermal slowdown", "hardware thermal slowdown"),
        (5, "power cap", "power cap"),
        (None, "power cap", "power cap"),
        (6, None, "thermal slowdown"),
        (None, None, None),
    ],
)
def test_heat_in_between_is_told_when_it_is_over(
    slowed: int | None, at_end: str | None, said: str | None
) -> None:
    after = replace(COOL, gpu_slowed_ns=slowed, gpu_throttle=at_end)
    assert columns(COOL, after)["gpu_throttle"] == said


# --- the CPU


def cpuinfo(root: Path, *clocks: str) -> Path:
    (root / "proc").mkdir()
    lines = "".join(f"processor\t: 0\ncpu MHz\t\t: {mhz}\n" for mhz in clocks)
    (root / "proc/cpuinfo").write_text(lines, encoding="utf-8")
    return root


def test_the_clock_is_the_mean_over_the_cores(tmp_path: Path) -> None:
    assert thermals.cpu_mhz(cpuinfo(tmp_path, "2000.5", "3000.5")) == 2500.5


@pytest.mark.parametrize(
    ("found", "mhz"),
    [(SimpleNamespace(current=3200.0), 3200.0), (SimpleNamespace(current=0.0), None), (None, None)],
)
def test_without_a_clock_in_cpuinfo_psutil_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Any, mhz: float | None
) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: found)
    assert thermals.cpu_mhz(tmp_path) == mhz


def test_a_system_without_clocks_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NotImplementedError

    monkeypatch.setattr(psutil, "cpu_freq", none)
    assert thermals.cpu_mhz(tmp_path) is None
    monkeypatch.delattr(psutil, "cpu_freq")
    assert thermals.cpu_mhz(tmp_path) is None


def sensor(*degrees: float) -> list[SimpleNamespace]:
    return [SimpleNamespace(label="", current=one) for one in degrees]


@pytest.mark.parametrize(
    ("sensors", "degrees"),
    [
        ({"coretemp": sensor(50.0, 61.0), "nvme": sensor(80.0)}, 61.0),
        ({"k10temp": sensor(45.0), "cpu_thermal": sensor(47.0)}, 47.0),
        ({"nvme": sensor(80.0)}, None),
        ({"coretemp": sensor(0.0)}, None),
        ({}, None),
    ],
)
def test_the_hottest_cpu_sensor(
    sensors: dict[str, list[SimpleNamespace]], degrees: float | None
) -> None:
    assert thermals.cpu_temperature(sensors) == degrees


def test_a_system_without_sensors_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert thermals.cpu_temperature() is None


# --- the GPU


class Nvml:
    """`pynvml` with one device; the questions in `silent` are not answered."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_PERF_POLICY_THERMAL = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *silent: str, compute: tuple[int, ...] = (), graphics: tuple[int, ...] = ()):
        self.silent = silent
        self.compute = compute
        self.graphics = graphics
        self.opened: int | str | None = None

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.silent:
            raise self.NVMLError(name)
        return value

    def nvmlInit(self) -> None:  # noqa: N802
        self._answer("nvmlInit", None)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.opened = index
        return str(self._answer("device", "device"))

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        self.opened = name
        return "device"

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:  # noqa: N802
        assert (device, kind) == ("device", self.NVML_CLOCK_SM)
        return int(self._answer("clock", 1755))

    def nvmlDeviceGetTemperature(self, device: str, kind: int) -> int:  # noqa: N802
        assert (device, kind) == ("device", self.NVML_TEMPERATURE_GPU)
        return int(self._answer("temperature", 61))

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: str) -> int:  # noqa: N802
        return int(self._answer("reasons", 0x1 | 0x4 | 0x40))

    def nvmlDeviceGetViolationStatus(self, device: str, policy: int) -> Any:  # noqa: N802
        assert policy == self.NVML_PERF_POLICY_THERMAL
        return self._answer("violation", SimpleNamespace(violationTime=77))

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[Any]:  # noqa: N802
        return list(self._answer("processes", [SimpleNamespace(pid=pid) for pid in self.compute]))

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: str) -> list[Any]:  # noqa: N802
        return list(self._answer("processes", [SimpleNamespace(pid=pid) for pid in self.graphics]))


def gpu(nvml: Nvml, **variables: str) -> thermals.Gpu:
    found = open_gpu(nvml, variables)
    assert found is not None
    return found


def test_what_a_gpu_tells() -> None:
    me = psutil.Process().pid
    nvml = Nvml(compute=(me, 1), graphics=(1, psutil.Process().ppid()))
    assert gpu(nvml).state() == {
        "gpu_mhz": 1755.0,
        "gpu_temperature_c": 61.0,
        "gpu_throttle": "power cap, hardware thermal slowdown",
        "gpu_slowed_ns": 77,
        "gpu_other_processes": 2,
    }
    assert set(gpu(nvml).state()) < set(vars(MachineState()))


def test_what_a_driver_does_not_tell_is_none() -> None:
    nvml = Nvml("clock", "temperature", "reasons", "violation", "processes")
    assert set(gpu(nvml).state().values()) == {None}


@pytest.mark.parametrize("silent", ["nvmlInit", "device"])
def test_no_driver_or_no_device(silent: str) -> None:
    assert open_gpu(Nvml(silent), {}) is None


def test_no_library() -> None:
    assert open_gpu(None, {}) is None


@pytest.mark.parametrize(
    ("visible", "opened"),
    [({}, 0), ({"CUDA_VISIBLE_DEVICES": "3,1"}, 3), ({"CUDA_VISIBLE_DEVICES": "GPU-a1"}, "GPU-a1")],
)
def test_the_first_visible_device_is_asked(visible: dict[str, str], opened: int | str) -> None:
    nvml = Nvml()
    gpu(nvml, **visible)
    assert nvml.opened == opened


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_ours(hidden: str) -> None:
    assert open_gpu(Nvml(), {"CUDA_VISIBLE_DEVICES": hidden}) is None


@pytest.mark.parametrize(
    ("pids", "count"),
    [
        (set(), 0),
        ({10}, 0),
        ({10, 11}, 0),
        ({10, 20}, 1),
        ({20, 21}, 2),
        ({90}, 0),  # listed by its pid outside of this container: us
        ({90, 91}, 1),
        ({10, 90}, 1),
    ],
)
def test_others_are_those_that_are_not_ours(pids: set[int], count: int) -> None:
    assert thermals.other_processes(pids, {10, 11}, lambda pid: pid < 50) == count


def test_our_children_are_ours() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as child:
        assert thermals.other_processes({child.pid}) == 0
        child.communicate()


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (0x0, ""),
        (0x1, ""),
        (0x2 | 0x10 | 0x100, "application clocks, sync boost, display clocks"),
        (0x8 | 0x20 | 0x80, "hardware slowdown, thermal slowdown, power brake slowdown"),
        (0x400, ""),
    ],
)
def test_reasons_in_words(bits: int, said: str) -> None:
    assert throttle_reasons(bits) == said


def test_the_bits_are_those_of_the_library() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name, said in (
        ("GpuIdle", ""),
        ("SwPowerCap", "power cap"),
        ("HwSlowdown", "hardware slowdown"),
        ("SwThermalSlowdown", "thermal slowdown"),
        ("HwThermalSlowdown", "hardware thermal slowdown"),
        ("HwPowerBrakeSlowdown", "power brake slowdown"),
    ):
        assert throttle_reasons(getattr(pynvml, f"nvmlClocksEventReason{name}")) == said
    for name in (name for name in dir(Nvml) if name.startswith(("nvml", "NVML"))):
        assert hasattr(pynvml, name), name


# --- this machine, and the witness


def test_reading_this_machine_is_quick() -> None:
    thermals.read_state()  # the first in a process may have to start a library
    quickest = min(_seconds(thermals.read_state) for _ in range(5))
    assert quickest < 0.02


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


ZERO = Sample(1000.0, 400.0, 5.0, 30.0, 7, 0.5)


def test_the_witness_tells_every_column_it_fills() -> None:
    samples: Iterator[Sample] = iter((ZERO, replace(ZERO, total_s=1020.0)))
    hot = replace(COOL, gpu_throttle="thermal slowdown", gpu_other_processes=2, temperature_c=88.0)
    states = iter((COOL, hot))
    witness = Witness(lambda: next(samples), lambda: next(states))
    with pytest.raises(RuntimeError, match="not been stopped"):
        _ = witness.readings
    with witness:
        pass
    assert (witness.seen.gpu_throttle, witness.seen.gpu_other_processes) == ("thermal slowdown", 2)
    assert witness.seen.other_cpu_fraction == 0.0
    names = BLOCKS.names
    filled = [*names[names.index("steal_fraction") : names.index("n_repeats")]]
    assert set(witness.readings) == {*filled, *_of_the_machine()}
    assert witness.readings["temperature_c_end"] == 88.0


def test_reading_the_state_is_not_between_the_samples() -> None:
    order: list[str] = []

    def sample() -> Sample:
        order.append("sample")
        return ZERO

    def state() -> MachineState:
        order.append("state")
        return COOL

    with Witness(sample, state):
        order.append("work")
    assert order == ["state", "sample", "work", "sample", "state"]
