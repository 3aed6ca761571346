from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bench import contention as watching
from runner.bench import machine
from runner.bench.contention import Contention, Sample, Witness, contention, void_reason, wait_quiet
from runner.errors import EnvironmentProblem
from runner.records import RUN
from runner.registration import VoidRule

# --- the machine


def test_facts_are_the_machine_columns_of_the_run_table() -> None:
    facts = machine.machine_facts()
    names = RUN.names[RUN.names.index("os") :]
    assert set(facts) == {"machine_key", *names}
    for field in (RUN.field(name) for name in facts):
        assert facts[field.name] is not None or field.nullable, field.name
    assert facts["memory_bytes"] > 2**20


FACTS = {
    "os": "Debian 12",
    "kernel": "6.1",
    "cpu": "EPYC",
    "physical_cores": 2,
    "logical_cores": 4,
    "memory_bytes": 24 * 2**30,
    "gpu": None,
    "gpu_driver": None,
    "environment": "{}",
}


@pytest.mark.parametrize(
    "change",
    [
        {"os": "Debian 13"},
        {"kernel": "6.2"},
        {"gpu_driver": "600"},
        {"environment": '{"a": 1}'},
        {"memory_bytes": 24 * 2**30 - 2**25},
    ],
)
def test_an_update_keeps_the_machine_key(change: dict[str, object]) -> None:
    assert machine.machine_key({**FACTS, **change}) == machine.machine_key(FACTS)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Xeon"},
        {"physical_cores": 4},
        {"logical_cores": 8},
        {"memory_bytes": 25 * 2**30},
        {"gpu": "H200"},
    ],
)
def test_other_hardware_is_another_machine(change: dict[str, object]) -> None:
    assert machine.machine_key({**FACTS, **change}) != machine.machine_key(FACTS)


def test_environment_keeps_what_changes_speed_and_nothing_private() -> None:
    found = machine.environment(
        {
            "OMP_NUM_THREADS": "2",
            "GGML_VK_VISIBLE_DEVICES": "0",
            "CUDA_VISIBLE_DEVICES": "1",
            "LLAMA_CPP_LIB_PATH": "/home/somebody/build/bin",
            "LLAMA_API_KEY": "hush",
            "LLAMA_ARG_HF_TOKEN": "hush",
            "PATH": "/bin",
            "HOME": "/home/somebody",
        }
    )
    assert found["variables"] == {
        "CUDA_VISIBLE_DEVICES": "1",
        "GGML_VK_VISIBLE_DEVICES": "0",
        "LLAMA_API_KEY": "(set, not recorded)",
        "LLAMA_ARG_HF_TOKEN": "(set, not recorded)",
        "LLAMA_CPP_LIB_PATH": "bin",
        "OMP_NUM_THREADS": "2",
    }
    assert set(found["packages"]) == {"llama-cpp-python", "numpy", "pyarrow"}
    assert found["packages"]["numpy"]
    assert found["python"].startswith("CPython 3.")
    assert "somebody" not in json.dumps(found)


def nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return tmp_path


def test_gpus_and_driver(only_path: Path) -> None:
    nvidia_smi(only_path, "echo 'NVIDIA H200, 580.65'; echo 'NVIDIA A, odd one, 580.65'")
    assert machine.gpu_facts() == ("NVIDIA H200; NVIDIA A, odd one", "580.65")


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found", "exec sleep 30"])
def test_no_gpu(only_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_GPU_TIMEOUT_S", 0.2)
    nvidia_smi(only_path, script)
    assert machine.gpu_facts() == (None, None)


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu_facts() == (None, None)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_cpu_name(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\nmodel name\t: EPYC 9\nmodel name\t: EPYC 9\n")
    assert machine.cpu_name(tmp_path) == "EPYC 9"
    assert machine.cpu_name(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("AMD EPYC", "AMD EPYC (family 25, model 17, stepping 1)"),
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
    ],
)
def test_a_name_that_many_generations_share_tells_which(
    tmp_path: Path, given_name: str, name: str
) -> None:
    told = f"cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {given_name}\nstepping\t: 1\n"
    write(tmp_path, "proc/cpuinfo", told)
    assert machine.cpu_name(tmp_path) == name


# --- cores and threads


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"a/b/cpu.max": "max 100000\n"}, None),
        ({"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2.5),
        ({"a/b/cpu.max": "300000 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ({"cpu.max": "100000 100000\n"}, 1.0),
        ({"c/cpu.max": "100000 100000\n"}, None),
    ],
)
def test_cgroup_limit(tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
    write(tmp_path, "proc/self/cgroup", "1:cpu:/old\n0::/a/b\n")
    for name, text in files.items():
        write(tmp_path, f"sys/fs/cgroup/{name}", text)
    assert machine.cgroup_cpu_limit(tmp_path) == limit


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert machine.cgroup_cpu_limit(tmp_path) is None


@pytest.mark.parametrize(
    ("allowed", "quota", "cores"),
    [
        ({0, 1, 2, 3}, None, 2),
        ({0, 1}, None, 1),
        ({0, 2}, None, 2),
        ({0, 1, 2, 3}, "150000", 1),
        ({0, 1, 2, 3}, "50000", 1),
        ({0, 1, 2, 3}, "900000", 2),
    ],
)
def test_usable_cores(tmp_path: Path, allowed: set[int], quota: str | None, cores: int) -> None:
    for cpu in range(4):  # two cores of two threads: 0 and 1 are siblings
        siblings = "0-1" if cpu < 2 else "2-3"
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, topology, f"{siblings}\n")
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    if quota:
        write(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota} 100000\n")
    assert machine.usable_cores(tmp_path, frozenset(allowed)) == cores


def test_without_topology_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert machine.usable_cores(tmp_path, frozenset({0, 1, 5})) == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_is_honoured() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.allowed_cpus() == frozenset({min(before)})
        assert machine.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_one_core_is_left_to_the_machine() -> None:
    threads, reason = machine.default_threads(cores=8)
    assert threads == 7
    assert "one of 8 usable cores" in reason
    assert "warning" not in reason


def test_a_single_core_is_used_and_warned_about() -> None:
    threads, reason = machine.default_threads(cores=1)
    assert threads == 1
    assert reason.startswith("this machine gives us one core; warning: 1 thread(s) on 1")


@pytest.mark.parametrize(("asked", "warned"), [(1, False), (3, False), (4, True), (9, True)])
def test_threads_that_were_asked_for(asked: int, warned: bool) -> None:
    threads, reason = machine.default_threads(asked, cores=4)
    assert threads == asked
    assert reason.startswith("asked for with --threads")
    assert ("warning" in reason) is warned
    assert (machine.threads_warning(asked, 4) is not None) is warned


@pytest.mark.parametrize("asked", [0, -2])
def test_no_threads_are_refused(asked: int) -> None:
    with pytest.raises(ValueError, match=f"--threads {asked}"):
        machine.default_threads(asked, cores=4)


# --- the witness

ZERO = Sample(
    total_s=1000.0, busy_s=400.0, steal_s=5.0, own_s=30.0, involuntary_switches=7, load_1m=0.5
)


def later(
    total: float, busy: float = 0.0, own: float = 0.0, steal: float = 0.0, switches: int = 0
) -> Sample:
    return Sample(
        total_s=ZERO.total_s + total,
        busy_s=ZERO.busy_s + busy,
        steal_s=(ZERO.steal_s or 0.0) + steal,
        own_s=ZERO.own_s + own,
        involuntary_switches=(ZERO.involuntary_switches or 0) + switches,
        load_1m=1.5,
    )


def test_others_are_the_machine_less_ourselves() -> None:
    seen = contention(ZERO, later(20.0, busy=9.0, own=8.0, steal=0.5, switches=3))
    assert seen == Contention(
        steal_fraction=0.025, other_cpu_fraction=0.05, involuntary_switches=3, load_1m=1.5
    )


def test_ticks_that_disagree_do_not_make_others_negative() -> None:
    assert contention(ZERO, later(20.0, busy=8.0, own=8.1)).other_cpu_fraction == 0.0


def silent(sample: Sample) -> Sample:
    return replace(sample, steal_s=None, involuntary_switches=None, load_1m=None)


def test_what_the_system_does_not_tell_is_null() -> None:
    seen = contention(silent(ZERO), silent(later(20.0, busy=9.0, own=8.0)))
    assert seen == Contention(None, 0.05, None, None)


def test_too_short_to_tell_is_null() -> None:
    seen = contention(ZERO, later(0.4, busy=0.4))
    assert (seen.steal_fraction, seen.other_cpu_fraction) == (None, None)
    assert seen.involuntary_switches == 0


@given(*[st.floats(0, 1e6)] * 4)
def test_fractions_are_fractions(total: float, busy: float, own: float, steal: float) -> None:
    seen = contention(ZERO, later(total, busy, own, steal))
    for share in (seen.steal_fraction, seen.other_cpu_fraction):
        assert share is None or 0.0 <= share <= 1.0


def replay(*samples: Sample) -> watching.Reader:
    stored: Iterator[Sample] = iter(samples)
    return lambda: next(stored)


def test_a_witness_around_a_block() -> None:
    with Witness(replay(ZERO, later(20.0, busy=9.0, own=8.0))) as witness:
        pass
    assert witness.seen.other_cpu_fraction == pytest.approx(0.05)


def test_a_witness_started_again_forgets() -> None:
    witness = Witness(replay(ZERO, later(10.0, busy=10.0), ZERO, later(10.0, busy=1.0)))
    witness.start()
    assert witness.stop().other_cpu_fraction == 1.0
    witness.start()
    with pytest.raises(RuntimeError, match="not been stopped"):
        _ = witness.seen
    assert witness.stop().other_cpu_fraction == pytest.approx(0.1)


def test_a_witness_sees_also_when_the_block_fails() -> None:
    witness = Witness(replay(ZERO, later(10.0, busy=10.0)))
    with pytest.raises(KeyError), witness:
        raise KeyError
    assert witness.seen.other_cpu_fraction == 1.0


def test_stopped_before_started() -> None:
    with pytest.raises(RuntimeError, match="before it was started"):
        Witness(replay(ZERO)).stop()


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_our_own_work_is_ours() -> None:
    before = watching.read_sample()
    spin(0.3)
    after = watching.read_sample()
    assert 0.25 <= after.own_s - before.own_s <= 0.6
    assert after.total_s - before.total_s >= 0.25
    assert after.busy_s - before.busy_s >= 0.2


def test_a_childs_work_is_ours_while_it_lives_and_after() -> None:
    work = "while time.process_time() < 0.3: pass"
    code = f"import time, sys\n{work}\nprint(flush=True)\nsys.stdin.read()"
    before = watching.read_sample().own_s
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = watching.read_sample().own_s
        child.communicate()
    gone = watching.read_sample().own_s
    assert living - before >= 0.28
    assert gone >= living - 0.02


RULE = VoidRule(steal_fraction_max=0.02, other_cpu_fraction_max=0.05, void_blocks_max=0.1)


@pytest.mark.parametrize(
    ("steal", "others", "said"),
    [
        (0.0, 0.0, None),
        (0.02, 0.05, None),
        (None, None, None),
        (0.03, 0.0, "the host took away 3.0% of the CPU, the rule allows 2.0%"),
        (None, 0.5, "other processes used 50.0% of the CPU, the rule allows 5.0%"),
    ],
)
def test_void_rule(steal: float | None, others: float | None, said: str | None) -> None:
    assert void_reason(Contention(steal, others, 0, 0.0), RULE) == said


GPU_RULE = RULE.model_copy(update={"gpu_other_processes_max": 0, "gpu_slowdown_allowed": False})


@pytest.mark.parametrize(
    ("throttle", "others", "said"),
    [
        (None, None, None),
        ("", 0, None),
        ("power cap, application clocks", 0, None),
        ("", 2, "2 other process(es) were on the GPU, the rule allows 0"),
        (
            "power cap, thermal slowdown",
            0,
            "the GPU was slowed: power cap, thermal slowdown",
        ),
    ],
)
def test_void_rule_of_a_gpu(throttle: str | None, others: int | None, said: str | None) -> None:
    seen = Contention(0.0, 0.0, 0, 0.0, throttle, others)
    assert void_reason(seen, GPU_RULE) == said
    assert void_reason(seen, RULE) is None, "a rule that says nothing of a GPU has no limit"


def test_every_passed_limit_is_named() -> None:
    reason = void_reason(Contention(0.5, 0.5, 0, 0.0), RULE)
    assert reason is not None
    assert "other processes" in reason
    assert "the host" in reason


class World:
    """A machine of 4 cores on a clock of its own; `busy` are the shares others take, by second."""

    def __init__(self, *busy: float, steal: float = 0.0) -> None:
        self.now = 100.0
        self.busy = busy
        self.steal = steal
        self.sample = ZERO

    def read(self) -> Sample:
        return self.sample

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        share = self.busy[min(int(self.now - 100.0), len(self.busy) - 1)]
        self.now += seconds
        self.sample = replace(
            self.sample,
            total_s=self.sample.total_s + 4 * seconds,
            busy_s=self.sample.busy_s + 4 * seconds * share,
            steal_s=(self.sample.steal_s or 0.0) + 4 * seconds * self.steal,
        )

    def wait(self, limit_s: float) -> float:
        return wait_quiet(limit_s, read=self.read, clock=self.clock, sleep=self.sleep)


def test_a_quiet_machine_is_watched_for_three_seconds() -> None:
    assert World(0.01).wait(60.0) == pytest.approx(3.0)


def test_noise_in_between_starts_the_three_seconds_anew() -> None:
    assert World(0.5, 0.01, 0.01, 0.2, 0.01).wait(60.0) == pytest.approx(7.0)


def test_a_noisy_machine_is_given_up_at_the_limit() -> None:
    world = World(0.4)
    with pytest.raises(EnvironmentProblem, match=r"not quiet after 10 s: others take 40\.0%"):
        world.wait(10.0)
    assert world.now == pytest.approx(110.0)


def test_quiet_that_began_before_the_limit_is_watched_to_its_end() -> None:
    assert World(0.01).wait(0.0) == pytest.approx(3.0)
    assert World(0.5, 0.5, 0.01).wait(3.0) == pytest.approx(5.0)
    with pytest.raises(EnvironmentProblem, match=r"not quiet after 4 s: others take 20\.0%"):
        World(0.5, 0.5, 0.01, 0.2).wait(3.0)


def test_stolen_time_is_not_quiet() -> None:
    with pytest.raises(EnvironmentProblem, match="not quiet"):
        World(0.0, steal=0.3).wait(10.0)


def test_counters_that_stand_still_are_no_quiet() -> None:
    with pytest.raises(EnvironmentProblem, match="does not tell"):
        wait_quiet(10.0, read=lambda: ZERO, clock=lambda: 0.0, sleep=lambda _: None)


def test_waiting_shows_progress() -> None:
    world = World(0.5, 0.0)
    told: list[tuple[float, float]] = []
    wait_quiet(
        60.0,
        read=world.read,
        clock=world.clock,
        sleep=world.sleep,
        on_step=lambda waited, share: told.append((waited, share)),
    )
    assert [waited for waited, _ in told] == pytest.approx([1, 2, 3, 4])
    assert told[0][1] == pytest.approx(0.5)
