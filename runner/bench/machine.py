"""The machine that measures: what it is, how much of it is ours, how many threads it bears."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any, Final

import psutil

PACKAGES: Final = ("llama-cpp-python", "numpy", "pyarrow")
# What changes the speed of OpenMP, BLAS, ggml or a GPU runtime, or which device is seen.
VARIABLES: Final = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "GGML_",
    "LLAMA_",
    "OPENBLAS_",
    "MKL_",
    "CUDA_",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "MALLOC_",
    "LD_PRELOAD",
)
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_HERE: Final = Path("/")
_GENERATION: Final = {"family": "cpu family", "model": "model", "stepping": "stepping"}
_GPU_QUERY: Final = ("--query-gpu=name,driver_version", "--format=csv,noheader")
_GPU_TIMEOUT_S: Final = 20.0


def machine_facts() -> dict[str, Any]:
    """The machine's columns of the table ``run``, `machine_key` among them."""
    gpu, driver = gpu_facts()
    facts: dict[str, Any] = {
        "os": operating_system(),
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": gpu,
        "gpu_driver": driver,
        "environment": json.dumps(environment(), sort_keys=True),
    }
    return {"machine_key": machine_key(facts), **facts}


def machine_key(facts: Mapping[str, Any]) -> str:
    """Digest of what stays the same when a machine is updated or restarted.

    Kernel, driver and distribution release change on the same machine; the memory a kernel
    reports moves by some MiB from one kernel to the next, so only whole GiB count.
    """
    stable = {name: facts[name] for name in ("cpu", "physical_cores", "logical_cores", "gpu")}
    stable["memory_gib"] = round(facts["memory_bytes"] / 2**30)
    stable["system"] = f"{platform.system()} {platform.machine()}"
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:16]


def operating_system() -> str:
    """The system's own name for itself, e.g. ``Debian GNU/Linux 12 (bookworm)``."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def cpu_name(root: Path = _HERE) -> str:
    """The processor's model name, or its architecture where the system does not tell.

    A hypervisor may name a family of products (``AMD EPYC``) whose generations differ in speed
    and instructions; a name without a number is followed by what tells them apart.
    """
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    told = dict(
        re.findall(r"^([a-z ]+?)\s*:\s*(.+?)\s*$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    )
    named = told.get("model name")
    if named is None:
        return platform.processor() or platform.machine()
    apart = [f"{name} {told[key]}" for name, key in _GENERATION.items() if key in told]
    return named if re.search(r"\d", named) or not apart else f"{named} ({', '.join(apart)})"


def gpu_facts() -> tuple[str | None, str | None]:
    """Names of the NVIDIA GPUs and their driver; none without a working ``nvidia-smi``."""
    listed = _output("nvidia-smi", *_GPU_QUERY)
    pairs = [line.rsplit(",", 1) for line in (listed or "").splitlines() if "," in line]
    if not pairs:
        return None, None
    return "; ".join(name.strip() for name, _ in pairs), pairs[0][1].strip()


def environment(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What else decides speed: Python, packages, variables, and how much CPU we may use."""
    found = os.environ if variables is None else variables
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": {
            name: _publishable(name, value)
            for name, value in sorted(found.items())
            if name.startswith(VARIABLES)
        },
        "affinity_cpus": len(allowed_cpus()),
        "cgroup_cpu_limit": cgroup_cpu_limit(),
        "usable_cores": usable_cores(),
    }


def allowed_cpus() -> frozenset[int]:
    """Logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(psutil.cpu_count() or 1))


def cgroup_cpu_limit(root: Path = _HERE) -> float | None:
    """CPUs that control group v2 grants this process; None when it sets no limit.

    A group's limit binds everything under it, so the smallest up to the top counts.
    """
    member = re.search(r"^0::(/.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    if not member:
        return None
    top = root / "sys/fs/cgroup"
    group = top / member[1].strip().lstrip("/")
    folders = [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    limits = [_cpu_max(folder / "cpu.max") for folder in folders]
    return min((limit for limit in limits if limit is not None), default=None)


def _cpu_max(path: Path) -> float | None:
    quota, _, period = _text(path).strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def usable_cores(root: Path = _HERE, allowed: frozenset[int] | None = None) -> int:
    """Physical cores this process may keep busy, by affinity and control group; at least 1.

    Two hyper-threads of one core count once. A limit of 2.5 CPUs is two cores: the third would
    be throttled in the middle of a measurement.
    """
    cpus = allowed_cpus() if allowed is None else allowed
    cores = {_core(root, cpu) for cpu in cpus}
    limit = cgroup_cpu_limit(root)
    return max(1, len(cores) if limit is None else min(len(cores), int(limit)))


def _core(root: Path, cpu: int) -> str:
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _text(siblings).strip() or f"cpu {cpu}"


def default_threads(asked: int | None = None, cores: int | None = None) -> tuple[int, str]:
    """How many threads to compute with, and the sentence that says why.

    Raises:
        ValueError: fewer than one thread was asked for.
    """
    usable = usable_cores() if cores is None else cores
    if asked is not None and asked < 1:
        raise ValueError(f"--threads {asked} cannot compute; give 1 or more")
    if asked is None and usable > 1:
        return usable - 1, (
            f"one of {usable} usable cores is left to the machine: threads wait for each other by "
            "spinning, and with every core taken one busy neighbour slows decode 25-fold"
        )
    threads = asked or 1
    reason = "asked for with --threads" if asked else "this machine gives us one core"
    warning = threads_warning(threads, usable)
    return threads, f"{reason}; {warning}" if warning else reason


def threads_warning(threads: int, cores: int) -> str | None:
    """What to say when `threads` leave no core free; None when they do."""
    if threads < cores:
        return None
    return (
        f"warning: {threads} thread(s) on {cores} usable core(s) leave none free, any other busy "
        "process will slow decode many times over"
    )


def _publishable(name: str, value: str) -> str:
    """`value` without what must not be published: secrets, and where a user keeps their files."""
    if _SECRET.search(name):
        return "(set, not recorded)"
    return PurePath(value).name if value.startswith(("/", "~")) else value


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # not every system has every file; the caller has an answer for that


def _output(program: str, *arguments: str) -> str | None:
    found = shutil.which(program)
    if not found:
        return None
    try:
        done = subprocess.run(
            [found, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GPU_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
