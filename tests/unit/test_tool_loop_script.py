"""The tool loop's script: exact sizes, the same ids for a seed, content that forges nothing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.catalog import Point
from runner.engine.backend import Vocabulary
from runner.engine.fake import FakeBackend
from runner.workloads.tool_loop import build_script

FAKE = FakeBackend()
POINTS = st.builds(
    Point,
    prefix=st.integers(1, 300),
    hops=st.integers(0, 6),
    generate=st.integers(1, 40),
    result=st.integers(1, 40),
)
SEEDS = st.integers(0, 2**40)
CONTROL = {token for token in (FAKE.vocabulary.bos, *FAKE.vocabulary.end_ids) if token is not None}


@given(POINTS, SEEDS)
def test_every_size_is_met_exactly(point: Point, seed: int) -> None:
    hops = build_script(point, FAKE, seed).hops
    assert len(hops) == point.hops + 1
    assert [len(hop.new) for hop in hops] == [point.prefix] + [point.result] * point.hops
    assert {len(hop.output) for hop in hops} == {point.generate}
    turn = point.generate + point.result
    assert [len(hop.context) for hop in hops] == [point.prefix + i * turn for i in range(len(hops))]
    assert len(hops[-1].context) + point.generate == point.n_tokens


@given(POINTS, SEEDS)
def test_each_context_is_the_one_before_with_its_output_and_what_is_new(
    point: Point, seed: int
) -> None:
    hops = build_script(point, FAKE, seed).hops
    assert np.array_equal(hops[0].context, hops[0].new)
    for before, after in pairwise(hops):
        assert np.array_equal(
            after.context, np.concatenate([before.context, before.output, after.new])
        )


@given(POINTS, SEEDS)
def test_the_seed_decides(point: Point, seed: int) -> None:
    script = build_script(point, FAKE, seed)
    assert build_script(point, FakeBackend(), seed).digest == script.digest


@given(SEEDS)
def test_every_seed_reads_other_text(seed: int) -> None:
    # Long enough to hold what a seed chooses: every text opens with fixed words.
    point = Point(prefix=1000, hops=1)
    digests = {build_script(point, FAKE, each).digest for each in (seed, seed + 1)}
    assert len(digests) == 2


@given(POINTS, SEEDS)
def test_content_holds_no_control_id_but_the_one_that_opens_it(point: Point, seed: int) -> None:
    hops = build_script(point, FAKE, seed).hops
    whole = np.concatenate([hops[-1].context, hops[-1].output]).tolist()
    assert whole[0] == FAKE.vocabulary.bos
    assert not CONTROL.intersection(whole[1:])


def test_a_model_without_a_bos_gets_none() -> None:
    class Plain(FakeBackend):
        @property
        def vocabulary(self) -> Vocabulary:
            known = super().vocabulary
            return Vocabulary(known.n_tokens, None, known.end_ids)

    assert (
        bytes(build_script(Point(prefix=20, hops=0), Plain(), 1).hops[0].new.tolist())
        == (b"You are an operations agent."[:20])
    )


@pytest.mark.parametrize("field", ["context", "output"])
def test_the_digest_covers_every_id(field: str) -> None:
    script = build_script(Point(prefix=30, hops=2), FAKE, 5)
    before = script.digest
    getattr(script.hops[2], field)[7] ^= 1
    assert script.digest != before


def test_a_longer_loop_begins_with_the_shorter() -> None:
    short = build_script(Point(prefix=30, hops=2), FAKE, 5).hops
    long = build_script(Point(prefix=30, hops=4), FAKE, 5).hops
    for one, other in zip(short, long, strict=False):
        assert np.array_equal(one.context, other.context)
        assert np.array_equal(one.output, other.output)
