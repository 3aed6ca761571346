"""Ways to cheat, one small `Machine` each. What is said of a machine is what it does.

Most are done to the baseline: it is the arm whose loss is our gain, and nothing repeats it. Those
called `Spares...` leave the parity control alone, as somebody would who knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from laboratory import CLAIM, CONTROL
from simulated import Clock, Costs, Machine, usual_script

from runner.arms import Arm
from runner.arms.host import EngineHost, open_engine
from runner.arms.live_kv import LiveKv
from runner.arms.meter import Meter
from runner.arms.reprefill import Reprefill
from runner.bench.isolated import Job
from runner.bench.schedule import Step
from runner.catalog import Point
from runner.engine.backend import Entry
from runner.engine.parameters import LoadParameters
from runner.engine.session import Session
from runner.serving.settings import ServerSettings
from runner.workloads.tool_loop import Hop, Script

NAP_S = 0.05


class Against(Machine):
    """Changes one arm, at every point or only where the claim is."""

    arms: ClassVar[tuple[str, ...]] = ("reprefill",)
    spares_control: ClassVar[bool] = False

    def hits(self, step: Step) -> bool:
        """Whether this step is cheated with."""
        spared = self.spares_control and step.point == CONTROL.id
        return step.arm in self.arms and not spared


# --- sleep


@dataclass(frozen=True)
class NapBeforeFirstToken(Costs):
    """Sleeps with every batch that begins a conversation."""

    def of(self, entry: Entry, n_computed: int) -> float:
        """See `Costs`."""
        return super().of(entry, n_computed) + NAP_S * (entry.start == 0)


@dataclass(frozen=True)
class NapAfterFirstToken(Costs):
    """Sleeps with every single token."""

    def of(self, entry: Entry, n_computed: int) -> float:
        """See `Costs`."""
        return super().of(entry, n_computed) + NAP_S * (len(entry.tokens) == 1)


class SleepsBeforeFirstToken(Against):
    """The baseline sleeps before the first token of each turn."""

    def costs(self, step: Step) -> Costs:
        """See `Machine`."""
        return NapBeforeFirstToken() if self.hits(step) else Costs()


class SparesControlAndSleepsBefore(SleepsBeforeFirstToken):
    """The baseline sleeps before the first token, but not in the parity control."""

    spares_control = True


class SleepsAfterFirstToken(Against):
    """The baseline sleeps after the first token of each turn."""

    def costs(self, step: Step) -> Costs:
        """See `Machine`."""
        return NapAfterFirstToken() if self.hits(step) else Costs()


class SparesControlAndSleepsAfter(SleepsAfterFirstToken):
    """The baseline sleeps after the first token, but not in the parity control."""

    spares_control = True


# --- another process than the plan says


class FewThreads(Against):
    """The baseline gets fewer threads."""

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 1.3 if self.hits(step) else 1.0


class SparesControlAndFewThreads(FewThreads):
    """The baseline gets fewer threads, but not in the parity control."""

    spares_control = True


class SlowControl(Against):
    """The baseline gets fewer threads, and in the parity control only."""

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 1.3 if self.hits(step) and step.point == CONTROL.id else 1.0


class FavouredTreatment(FewThreads):
    """Live KV gets more threads than under its other name."""

    arms = ("live_kv",)
    spares_control = True

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 0.97 if self.hits(step) else 1.0


class SmallBatch(Against):
    """The baseline must cut its prompts into small batches."""

    def n_batch(self, step: Step) -> int:
        """See `Machine`."""
        return 2 if self.hits(step) else super().n_batch(step)


class SparesControlAndSmallBatch(SmallBatch):
    """The baseline's batches are small, but not in the parity control."""

    spares_control = True


class LessWarmUp(Against):
    """The baseline starts cold on a machine on which the first tokens are slow."""

    def costs(self, step: Step) -> Costs:
        """See `Machine`."""
        return Costs(n_cold=32)

    def warmup(self, step: Step, planned: int) -> int:
        """See `Machine`."""
        return 0 if self.hits(step) else planned


class AnotherModelFile(Against):
    """The baseline loads another file: a larger, slower model."""

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 1.5 if self.hits(step) else 1.0


# --- other work than the script says


class Looping:
    """An arm that follows a script; a sabotage changes how one hop is done."""

    name: ClassVar[str] = "cheat"
    about: ClassVar[str] = "Does something else than it says."
    speaks_freely: ClassVar[bool] = False

    @classmethod
    def open(cls, parameters: LoadParameters, _: ServerSettings) -> EngineHost:
        """See `Arm`."""
        return open_engine(parameters)

    @staticmethod
    def prefill_tokens(point: Point) -> int:
        """See `Arm`."""
        return Reprefill.prefill_tokens(point)

    def hops(self, script: Script) -> tuple[Hop, ...]:
        """The hops it runs."""
        return script.hops

    def feed(self, host: EngineHost, session: Session, hop: Hop) -> None:
        """Bring the conversation into the session, as re-prefill does."""
        session.reset()
        session.send(hop.context)

    def run(self, host: EngineHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        with host.engine.session() as session, meter.session():
            for hop in self.hops(script):
                meter.start_hop()
                self.feed(host, session, hop)
                turn = session.generate(len(hop.output), script=hop.output.tolist())
                meter.end_hop(hop.index, len(hop.new), turn, session.tokens)


class CachedLoop(Looping):
    """Keeps what is in KV already."""

    def feed(self, host: EngineHost, session: Session, hop: Hop) -> None:
        """See `Looping`."""
        session.set_conversation(hop.context)


class TextLoop(Looping):
    """Turns the ids into text and back."""

    def feed(self, host: EngineHost, session: Session, hop: Hop) -> None:
        """See `Looping`."""
        session.reset()
        backend = host.engine.backend
        session.send(backend.tokenize(backend.detokenize(hop.context)))


class DoubleLoop(Looping):
    """Computes the prompt once for nothing."""

    def feed(self, host: EngineHost, session: Session, hop: Hop) -> None:
        """See `Looping`."""
        session.reset()
        session.send(hop.context)
        session.generate(0)
        session.reset()
        session.send(hop.context)


class PaddedLoop(Looping):
    """Sends more prompt tokens than the script has."""

    def feed(self, host: EngineHost, session: Session, hop: Hop) -> None:
        """See `Looping`."""
        session.reset()
        session.send(hop.context[:1])
        session.send(hop.context)


class ShortLoop(Looping):
    """Leaves the last hop out."""

    def hops(self, script: Script) -> tuple[Hop, ...]:
        """See `Looping`."""
        return script.hops[:-1] if len(script.hops) > 1 else script.hops


class TruncatedLoop(Looping):
    """Stops a token early."""

    def hops(self, script: Script) -> tuple[Hop, ...]:
        """See `Looping`."""
        return tuple(replace(hop, output=hop.output[:-1]) for hop in script.hops)


class ForgetfulLoop(LiveKv):
    """Live KV that computes its last tokens again after every tool result."""

    def run(self, host: EngineHost, script: Script, meter: Meter) -> None:
        """See `Arm`."""
        with host.engine.session() as session, meter.session():
            for hop in script.hops:
                meter.start_hop()
                session.roll_back(max(0, len(session.tokens) - 4))
                session.send(hop.context[len(session.tokens) :])
                turn = session.generate(len(hop.output), script=hop.output.tolist())
                meter.end_hop(hop.index, len(hop.new), turn, session.tokens)


class OtherWork(Against):
    """The baseline does other work than it says."""

    loop: ClassVar[type[Arm]]

    def arm(self, step: Step) -> Arm:
        """See `Machine`."""
        return self.loop() if self.hits(step) else super().arm(step)


class CacheOn(OtherWork):
    """Re-prefill with the cache on."""

    loop = CachedLoop


class FedText(OtherWork):
    """The baseline is fed text instead of ids."""

    loop = TextLoop


class SparesControlAndFedText(FedText):
    """The baseline is fed text, but not in the parity control."""

    spares_control = True


class ExtraTokens(OtherWork):
    """The baseline gets extra prompt tokens."""

    loop = PaddedLoop


class ComputesTwice(OtherWork):
    """The baseline computes every prompt twice and tells of one."""

    loop = DoubleLoop


class SparesControlAndComputesTwice(ComputesTwice):
    """The baseline computes prompts twice, but not in the parity control."""

    spares_control = True


class SkipsHop(OtherWork):
    """The baseline leaves the last hop out."""

    loop = ShortLoop


class TruncatesOutput(OtherWork):
    """The baseline stops every turn a token early."""

    loop = TruncatedLoop


class ComputesAgain(OtherWork):
    """Live KV, under both names, computes tokens again that it had."""

    arms = ("live_kv", "live_kv_again")
    loop = ForgetfulLoop


def _other(hop: Hop) -> Hop:
    """A hop of the same sizes and other ids."""
    return replace(hop, new=hop.new ^ 1, context=hop.context ^ 1, output=hop.output ^ 1)


class AnotherScript(Against):
    """The baseline is given another script."""

    spares_control = True

    def script(self, step: Step, point: Point, seed: int) -> Script:
        """See `Machine`."""
        whole = usual_script(point, seed)
        return replace(whole, hops=tuple(map(_other, whole.hops))) if self.hits(step) else whole


class ShorterForAll(Machine):
    """Every arm is given a script without its last hop."""

    def script(self, step: Step, point: Point, seed: int) -> Script:
        """See `Machine`."""
        whole = usual_script(point, seed)
        return replace(whole, hops=whole.hops[:-1]) if point.hops else whole


class TerserForAll(Machine):
    """Every arm is given a script whose turns lack a token."""

    def script(self, step: Step, point: Point, seed: int) -> Script:
        """See `Machine`."""
        terse = point.model_copy(update={"generate": point.generate - 1})
        return replace(usual_script(terse, seed), point=point)


# --- what the worker reports


class LosesHop(Against):
    """A hop of the baseline is missing in what its worker reports."""

    def run_arm(self, step: Step, job: Job) -> dict[str, Any]:
        """See `Machine`."""
        measured = super().run_arm(step, job)
        if self.hits(step):
            measured["hops"].pop()
        return measured


class ReportsNaN(Against):
    """A time of the baseline is not a number."""

    def run_arm(self, step: Step, job: Job) -> dict[str, Any]:
        """See `Machine`."""
        measured = super().run_arm(step, job)
        if self.hits(step) and step.block == 0:
            measured["block"]["decode_s"] = float("nan")
        return measured


class ClockBackwards(Against):
    """The baseline's clock went backwards."""

    def run_arm(self, step: Step, job: Job) -> dict[str, Any]:
        """See `Machine`."""
        measured = super().run_arm(step, job)
        if self.hits(step):
            measured["block"]["wall_s"] *= -1
        return measured


# --- the machine itself


class Disturbed(Machine):
    """Another program runs during three of ten blocks."""

    def others(self, step: Step) -> float:
        """See `Machine`."""
        return 0.5 if step.block < 3 and step.arm == "reprefill" else 0.01


class FrozenClock(Machine):
    """The arms that are compared take the same time in every block, to the last bit."""

    def load(self, step: Step) -> Any:
        """See `Machine`."""
        backend = super().load(step)
        if step.arm != "live_kv_again" and step.point == CLAIM.id:
            self.clock = backend.clock = Clock()
            backend.slowness = 1.0
        return backend


class StallsOnce(Machine):
    """The machine is suspended once in every arm of the first block."""

    def costs(self, step: Step) -> Costs:
        """See `Machine`."""
        return Costs(call_s=60.0) if step.block == 0 and step.point == CLAIM.id else Costs()


class SlowerLiveKv(Against):
    """A world in which keeping state costs more than it saves."""

    arms = ("live_kv", "live_kv_again")
    spares_control = True

    def factor(self, step: Step) -> float:
        """See `Machine`."""
        return 4.0 if self.hits(step) else 1.0
