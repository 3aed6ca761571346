from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import platform as host
import shutil
import stat
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from rich.console import Console

from runner import catalog, fetching
from runner.building import build, devices, layout, source, toolchain
from runner.building.build import Recipe, ensure_engine, library_digest
from runner.building.mends import MENDS, Mend, mend
from runner.building.toolchain import Toolchain
from runner.errors import EnvironmentProblem, UsageError
from runner.fetching import Artefact

PYTHON = sys.executable
CPU = catalog.platforms()["cpu"]
CUDA = catalog.platforms()["cuda"]
TOOLS = Toolchain(Path("/opt/cmake"), None, ("x86_64", "cc 1.0"))


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{PYTHON}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


FAKE_CMAKE = """
import pathlib, sys
arguments = sys.argv[1:]
if "-B" in arguments:
    pathlib.Path(arguments[arguments.index("-B") + 1], "bin").mkdir(parents=True)
else:
    folder = pathlib.Path(arguments[arguments.index("--build") + 1])
    with open(folder.parent.parent / "calls", "a") as calls:
        calls.write("build\\n")
    for step in range(1, 5):
        print(f"[{step}/4] Building", flush=True)
    for name in ("libllama.so", "llama-server", "llama-bench", "llama-quantize"):
        (folder / "bin" / name).write_text(name)
    (folder / "big.o").write_text("object")
"""


@pytest.fixture
def fake_tree(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose cmake writes the four files at once, and a source without a download."""

    def unpack(into: Path, console: Console) -> Path:
        into.mkdir(parents=True)
        (into / "CMakeLists.txt").write_text("")
        for one in MENDS:
            (into / one.path).parent.mkdir(parents=True)
            (into / one.path).write_text(f"{{\n{one.before}}}\n")
        return into

    monkeypatch.setattr(source, "unpack_llama_cpp", unpack)
    return Recipe(CPU, Toolchain(program(tmp_path, "cmake", FAKE_CMAKE), None, ("cc 1.0",)))


def builds_made(recipe: Recipe) -> int:
    calls = recipe.folder.parent / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def test_a_build_is_kept_without_its_sources_and_reused(
    fake_tree: Recipe, console: Console
) -> None:
    folder = build._built(fake_tree, console)
    assert sorted(path.name for path in folder.iterdir()) == ["bin", "build.json"]
    assert build._built(fake_tree, console) == folder
    assert builds_made(fake_tree) == 1


def test_a_killed_build_is_never_taken_for_a_finished_one(
    fake_tree: Recipe, console: Console
) -> None:
    partial = build._beside(fake_tree.folder, ".partial")
    (partial / "bin").mkdir(parents=True)
    (partial / "bin" / "libllama.so").write_text("half")
    # Even under the final name: without its record it is not finished.
    shutil.copytree(partial, fake_tree.folder)
    folder = build._built(fake_tree, console)
    assert (folder / "bin" / "libllama.so").read_text() == "libllama.so"
    assert not partial.exists()
    assert builds_made(fake_tree) == 1


def test_two_at_once_build_once(fake_tree: Recipe, console: Console) -> None:
    threads = [threading.Thread(target=build._built, args=(fake_tree, console)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds_made(fake_tree) == 1


def test_a_failed_build_names_the_compiler_error_and_the_log(
    fake_tree: Recipe, tmp_path: Path, console: Console
) -> None:
    script = (
        "import sys\nprint('a.cpp:3: error: no such type')\nprint('ninja: stopped')\nsys.exit(1)"
    )
    tools = dataclasses.replace(fake_tree.tools, cmake=program(tmp_path, "failing", script))
    recipe = Recipe(CPU, tools)
    with pytest.raises(
        EnvironmentProblem, match=r"a\.cpp:3: error: no such type; the whole log is"
    ):
        build._built(recipe, console)
    assert not recipe.folder.exists()
    assert "ninja: stopped" in build._beside(recipe.folder, ".log").read_text()


def test_a_build_needs_room(
    fake_tree: Recipe, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_SPACE", 1 << 60)
    with pytest.raises(
        EnvironmentProblem, match=r"building llama\.cpp for cpu needs .* MB are free"
    ):
        build._built(fake_tree, console)


def test_a_mended_line_stands_in_the_source_and_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Mend("ggml/a.cpp", "    load(&tc);\n", "    read(tc);\n    load(&tc);\n")
    path = tmp_path / one.path
    path.parent.mkdir()
    path.write_text("f() {\n    load(&tc);\n}\n")
    mend(tmp_path, (one,))
    assert path.read_text() == "f() {\n    read(tc);\n    load(&tc);\n}\n"
    folder = Recipe(CPU, TOOLS).folder
    monkeypatch.setattr(build, "MENDS", (*MENDS, one))
    assert Recipe(CPU, TOOLS).folder != folder


@pytest.mark.parametrize("text", ["", "    load(&tc);\n    load(&tc);\n"])
def test_a_source_with_another_line_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.cpp").write_text(text)
    with pytest.raises(EnvironmentProblem, match=r"a\.cpp of llama\.cpp has .* [02] times"):
        mend(tmp_path, (Mend("a.cpp", "    load(&tc);\n", "other"),))


def test_flags_compiler_and_cpu_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Recipe(CPU, TOOLS).folder
    other_compiler = dataclasses.replace(TOOLS, identity=("x86_64", "cc 2.0"))
    assert Recipe(CPU, other_compiler).folder != folder
    other_flags = CPU.model_copy(update={"cmake_flags": (*CPU.cmake_flags, "-DGGML_AVX2=OFF")})
    assert Recipe(other_flags, TOOLS).folder != folder
    monkeypatch.setattr(toolchain, "cpu_features", lambda: "another cpu")
    assert Recipe(CPU, TOOLS).folder != folder
    portable = CPU.model_copy(update={"cmake_flags": ("-DGGML_NATIVE=OFF",)})
    anywhere = Recipe(portable, TOOLS).folder
    monkeypatch.setattr(toolchain, "cpu_features", lambda: "a third cpu")
    assert Recipe(portable, TOOLS).folder == anywhere


def test_dry_run_prints_and_builds_nothing(cache: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no compiler on this machine")
    console = Console(record=True, width=2000, file=io.StringIO())
    assert ensure_engine("cpu", None, console, dry_run=True) is None
    text = console.export_text()
    assert "-DGGML_NATIVE=ON" in text
    assert "--target llama llama-server llama-bench llama-quantize" in text
    assert "(not built yet)" in text
    assert list(cache.iterdir()) == []


def test_an_unknown_platform_is_answered_with_the_known_ones(console: Console) -> None:
    with pytest.raises(UsageError, match=r"unknown platform 'tpu'; choose one of: cpu, cuda"):
        ensure_engine("tpu", None, console)


def test_a_platform_of_another_system_is_refused(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "system", lambda: "Plan9")
    with pytest.raises(
        EnvironmentProblem, match="platform cpu exists on Linux and Darwin, this is"
    ):
        ensure_engine("cpu", None, console)


def only_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)


def test_each_missing_program_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_path(monkeypatch, tmp_path)
    for refusal, then in (
        ("no cmake on PATH; `pip install cmake ninja`", "cmake"),
        ("neither ninja nor make on PATH", "ninja"),
        (r"no C compiler \(cc, gcc, clang\) on PATH; `apt-get install g\+\+`", "cc"),
        (r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\) on PATH", "c++"),
        (r"platform cuda needs nvcc on PATH; install an NVIDIA GPU", "nvcc"),
        (r"platform cuda needs nvidia-smi on PATH", "nvidia-smi"),
    ):
        with pytest.raises(EnvironmentProblem, match=refusal):
            toolchain.find(CUDA)
        program(tmp_path, then, f"print('{then} 7.1')")
    found = toolchain.find(CUDA)
    assert found.cmake == tmp_path / "cmake"
    assert "c++ 7.1" in found.identity
    assert str(tmp_path) in found.environment["PATH"]


def test_a_named_compiler_that_is_absent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_path(monkeypatch, tmp_path)
    program(tmp_path, "cmake", "")
    program(tmp_path, "ninja", "")
    monkeypatch.setenv("CC", "nocc-9 -m64")
    with pytest.raises(EnvironmentProblem, match=r"no C compiler \(nocc-9 -m64\)"):
        toolchain.find(CPU)


LIST = "print('Available devices:\\n  {}')"


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)", True),
        ("Vulkan0: llvmpipe (1 MiB, 1 MiB free)", False),
        ("(none)", False),
    ],
)
def test_the_library_must_list_the_platforms_device(
    line: str, accepted: bool, tmp_path: Path
) -> None:
    program(tmp_path, "llama-bench", LIST.format(line))
    if accepted:
        devices.require_device(CUDA, tmp_path)
        return
    with pytest.raises(EnvironmentProblem, match="platform cuda needs a CUDA device, the library"):
        devices.require_device(CUDA, tmp_path)


def test_a_library_that_cannot_start_is_named(tmp_path: Path) -> None:
    program(tmp_path, "llama-bench", "import sys; sys.exit('libcuda.so.1: cannot open')")
    with pytest.raises(EnvironmentProblem, match=r"cannot run \(1\): libcuda\.so\.1"):
        devices.require_device(CUDA, tmp_path)
    with pytest.raises(EnvironmentProblem, match="has no llama-bench"):
        devices.require_device(CUDA, tmp_path / "elsewhere")


def test_a_folder_without_libllama_is_no_build(tmp_path: Path, console: Console) -> None:
    with pytest.raises(UsageError, match="no libllama in"):
        ensure_engine("cpu", tmp_path, console)


def test_a_moved_field_is_found() -> None:
    assert layout.differences(dict(layout.EXPECTED)) == []
    moved = {**layout.EXPECTED, "context.kv_unified": True, "context.n_batch": 512}
    assert layout.differences(moved) == [
        "context.n_batch is 512, expected 2048",
        "context.kv_unified is True, expected False",
    ]


def test_a_library_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_bytes(b"not a library")
    with pytest.raises(UsageError, match="cannot be loaded") as refused:
        layout.require_layout(tmp_path)
    assert "\n" not in str(refused.value)


def test_the_digest_covers_the_kernels_too(tmp_path: Path) -> None:
    (tmp_path / "libllama.so.1").write_bytes(b"a")
    (tmp_path / "libggml-cpu.so.1").write_bytes(b"b")
    (tmp_path / "libllama.so").symlink_to("libllama.so.1")
    before = library_digest(tmp_path)
    (tmp_path / "llama-server").write_bytes(b"c")
    assert library_digest(tmp_path) == before
    (tmp_path / "libggml-cpu.so.1").write_bytes(b"B")
    assert library_digest(tmp_path) != before


def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> Path:
    """Put a Python in place whose `-m pip download` writes `content`; returns its call log."""
    calls = tmp_path / "calls"
    script = f"""
import pathlib, sys
with open({str(calls)!r}, "a") as log:
    log.write("call\\n")
if not {content!r}:
    sys.exit("ERROR: No matching distribution found")
pathlib.Path(sys.argv[sys.argv.index("--dest") + 1], "thing-1.tar.gz").write_bytes({content!r})
"""
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "bin", "python", script)))
    return calls


THING = Artefact("thing==1", "thing-1.tar.gz", hashlib.sha256(b"right").hexdigest(), 5, True)


def test_a_right_file_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    calls = fake_pip(monkeypatch, tmp_path, b"right")
    folder = tmp_path / "downloads"
    for _ in range(2):
        assert fetching.fetch(THING, folder, console).read_bytes() == b"right"
    assert calls.read_text().count("call") == 1


def test_a_partial_file_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    calls = fake_pip(monkeypatch, tmp_path, b"right")
    folder = tmp_path / "downloads"
    folder.mkdir()
    (folder / THING.file).write_bytes(b"rig")
    assert fetching.fetch(THING, folder, console).read_bytes() == b"right"
    assert calls.read_text().count("call") == 1


def test_a_wrong_file_never_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    fake_pip(monkeypatch, tmp_path, b"wrong")
    with pytest.raises(EnvironmentProblem, match=r"thing-1\.tar\.gz has sha256 .*, expected"):
        fetching.fetch(THING, tmp_path / "downloads", console)
    assert not (tmp_path / "downloads" / THING.file).exists()


def test_an_index_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    fake_pip(monkeypatch, tmp_path, b"")
    with pytest.raises(EnvironmentProblem, match="cannot fetch thing==1: ERROR: No matching"):
        fetching.fetch(THING, tmp_path / "downloads", console)


def make_sdist(path: Path) -> None:
    root = f"llama_cpp_python-{source.BINDING_VERSION}"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("setup.py", "vendor/llama.cpp/CMakeLists.txt", "vendor/llama.cpp/src/a.cpp"):
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))


def test_only_the_llama_cpp_tree_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    archive = tmp_path / "sdist.tar.gz"
    make_sdist(archive)
    monkeypatch.setattr(source, "sdist", lambda _console: archive)
    tree = source.unpack_llama_cpp(tmp_path / "tree", console)
    found = sorted(str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file())
    assert found == ["CMakeLists.txt", f"src{os.sep}a.cpp"]
    assert source.extract("src/a.cpp", tmp_path / "a.cpp", console).read_bytes().endswith(b"a.cpp")
    with pytest.raises(EnvironmentProblem, match=r"has no models/none\.gguf"):
        source.extract("models/none.gguf", tmp_path / "none", console)
