"""Does the faults to a job one after another, and judges what is told of each, and how the job ends."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from chaos.faults.job import RECOVERS_S, Job, Steady
from chaos.faults.kinds import Fault, StoreTrouble
from chaos.faults.plan import Trial
from chaos.faults.worker import softmax
from support import processes_with

MIN_ACCURACY = 0.9


@dataclass
class Row:
    """What is told of one trial."""

    text: str
    detect_s: float | None = None
    recover_s: float | None = None
    verdict: str = "not reached"

    def __str__(self) -> str:
        seconds = [f"{each:6.2f}" if each is not None else "     -" for each in (self.detect_s, self.recover_s)]
        return f"{' '.join(seconds)}  {self.text:<58} {self.verdict}"


@dataclass
class Engine:
    """One job and its trials."""

    job: Job
    trials: list[Trial]
    rows: list[Row] = field(default_factory=list)
    summary: str = ""

    def play(self) -> None:
        """Do all of it.

        Raises:
            AssertionError: something that was promised is not so.
        """
        job = self.job
        self.rows = [Row(str(trial)) for trial in self.trials]
        job.prepare()
        for place in job.places.values():
            job.bring(place)
        first = job.steady(steps=1)
        for trial, row in zip(self.trials, self.rows, strict=True):
            row.verdict = "FAILED"
            row.verdict = self._try(trial, row)
        self._end(first)

    def table(self) -> str:
        """Return what was done, and how it went."""
        head = "detect recover  fault                                                      verdict"
        return "\n".join([head, *map(str, self.rows), self.summary])

    # --- one trial

    def _try(self, trial: Trial, row: Row) -> str:
        job = self.job
        before = job.steady(steps=trial.steps)
        heard, known = job.heard(), set(job.incidents())
        for fault in trial.faults:
            fault.aim(job, before)
            fault.muted = any(isinstance(other, StoreTrouble) for other in trial.faults)
        began_s = time.monotonic()
        for at, fault in enumerate(trial.faults):
            if at:
                threading.Event().wait(trial.apart_s)
            fault.inject(job)
        job.comes(lambda: any(job.since(heard).values()), f"a word of any node about {row.text}")
        row.detect_s = time.monotonic() - began_s
        alone = trial.faults[0] if len(trial.faults) == 1 else None
        if alone is not None:
            alone.alone(job, before)
        for fault in trial.faults:
            fault.heal(job)
        after = self._again(trial, before, alone)
        row.recover_s = after.at_s - began_s
        if alone is not None and alone.restarts:  # each node writes its file beside its work
            job.comes(lambda: len(job.incidents().keys() - known) >= len(before.said), f"the incidents of {trial}")
        found = [incident for path, incident in job.incidents().items() if path not in known]
        if alone is not None:
            self._told_the_same(found, alone, before)
        causes = self._explained(found, trial.faults)
        ends = [reason for reasons in job.endings(heard).values() for reason in reasons]
        causes |= {reason for reason in ends if self._check_end(reason, trial.faults)}
        self._counts(trial, before, after, alone)
        if isinstance(alone, StoreTrouble):
            alone.unharmed(job, before, after)
        return "; ".join(sorted(causes)) or "workers unchanged"

    def _again(self, trial: Trial, before: Steady, alone: Fault | None) -> Steady:
        """Wait until all train again, in another round if the faults must have ended this one."""
        job = self.job

        def later() -> Steady | None:
            now = job.steady(steps=1)
            harmed = [fault for fault in trial.faults if not isinstance(fault, StoreTrouble)]
            return now if not harmed or now.gen > before.gen else None

        job.comes(later, f"another round after {trial}", RECOVERS_S)
        after = job.steady(steps=3)
        if alone is not None and alone.restarts:
            assert after.gen == before.gen + 1, f"more than one round after {trial}\n{job.told()}"
        return after

    def _told_the_same(self, found: list[dict], alone: Fault, before: Steady) -> None:  # type: ignore[type-arg]  # JSON
        told = [{key: value for key, value in incident.items() if key != "phases"} for incident in found]
        wanted = len(before.said) if alone.restarts else 0
        assert len(told) == wanted, f"{len(told)} incidents, not {wanted}, after {alone}: {told}\n{self.job.told()}"
        assert all(incident == told[0] for incident in told), f"nodes tell differently of {alone}: {told}"

    def _explained(self, found: list[dict], faults: Iterable[Fault]) -> set[str]:  # type: ignore[type-arg]  # JSON
        for incident in found:
            if not any(fault.explains(incident) for fault in faults):
                done = ", ".join(map(str, faults))
                raise AssertionError(f"not the first cause after {done}: {_short(incident)}\n{self.job.told()}")
        return {f"{incident['failure_class']}: {incident['summary']}" for incident in found}

    def _check_end(self, reason: str, faults: Iterable[Fault]) -> bool:
        true = any(fault.explains_end(reason) for fault in faults)
        assert true, f"a round ended after {', '.join(map(str, faults))} because: {reason}\n{self.job.told()}"
        return "joined" not in reason

    def _counts(self, trial: Trial, before: Steady, after: Steady, alone: Fault | None) -> None:
        restarts, changes = after.restarts - before.restarts, after.changes - before.changes
        most = sum(fault.restarts for fault in trial.faults)
        least = most if alone is not None else 0
        assert least <= restarts <= most, f"{restarts} restarts after {trial}, not {least} to {most}\n{self.job.told()}"
        bounds = [fault.changes for fault in trial.faults]
        low, high = (sum(each) for each in zip(*bounds, strict=True))
        if alone is None:  # a node that is lost while a failure is decided goes out with the same step
            low = 0 if restarts else min(low, 1)
        assert low <= changes <= high, f"{changes} changes after {trial}, not {low} to {high}\n{self.job.told()}"

    # --- the end

    def _end(self, first: Steady) -> None:
        job = self.job
        last = job.steady(steps=1)
        least = job.finish()
        for place in job.here:
            code = place.agent.agent.wait(RECOVERS_S)
            assert code == 0, f"{place.agent.name} ended with {code}\n{job.told()}"
        steps, accuracy = self._judge_training(least)
        self._judge_rounds()
        self._judge_leavings()
        made, rounds = len(softmax.checkpoints(job.run.shared)), last.gen - first.gen
        self.summary = (
            f"{steps} steps, {rounds} rounds more, {last.restarts} failures, {last.changes} membership changes; "
            f"held-out accuracy {accuracy:.1%} by the weights of an undisturbed training; {made} checkpoints, none torn"
        )

    def _judge_training(self, least: int) -> tuple[int, float]:
        """Compare every checkpoint that there ever was with an undisturbed training.

        Returns:
            The number of steps, at least as many as were wanted: a training may have been further before it was told to
            end; and the accuracy at the end.
        """
        shared = self.job.run.shared
        train_set, held_out = softmax.Data.read(shared / "digits.npy")
        model, saved, ends = softmax.Model.new(), {}, set()
        for path in softmax.checkpoints(shared):
            one, says = softmax.load(path)
            saved.setdefault(one.step, []).append((path.name, one))
            if says["last"]:
                ends.add(one.step)
        steps = max(saved)
        assert ends == {steps}, f"the last checkpoint is of step {steps}, and the training ended at {ends}"
        assert steps >= least, f"the training ended at step {steps}, and not at {least}"
        while model.step < steps:
            model = model.moved(model.gradient(train_set, rank=0, world_size=1))
            for name, one in saved.get(model.step, ()):
                same = np.allclose(one.weights, model.weights, rtol=0, atol=1e-6)
                assert same, f"{name} differs from an undisturbed training"
        accuracy = saved[steps][-1][1].accuracy(held_out)
        assert accuracy >= max(MIN_ACCURACY, model.accuracy(held_out) - 1e-9), f"accuracy {accuracy}"
        return steps, accuracy

    def _judge_rounds(self) -> None:
        """Check that no two rounds trained at once, and that each went on from the newest checkpoint."""
        job = self.job
        said = sorted((line for node in job.history for line in node.says()), key=lambda line: int(line["gen"]))
        written = [softmax.load(path)[1] for path in softmax.checkpoints(job.run.shared)]
        for line in said:
            gen, at_s = int(line["gen"]), float(line["at"])
            older = [one for one in said if int(one["gen"]) < gen]
            latest_s = max((job.last_seen_s(int(one["pid"])) for one in older), default=0.0)
            assert latest_s < at_s, f"a worker of an older round trained when {line} began"
            newest = max((one["step"] for one in written if one["gen"] < gen), default=0)
            assert line["from"] == newest, f"{line} did not go on from the checkpoint of step {newest}"
            late = [one for one in written if one["gen"] < gen and one["at"] > at_s]
            assert not late, f"{late} was written when {line} had begun"

    def _judge_leavings(self) -> None:
        """Check that no process is left, and of those who ended by themselves no file but the records of their runs."""
        job = self.job
        marks = [f"TORCHELASTIC_RUN_ID={job.run.id}"]
        marks += [f"XDG_RUNTIME_DIR={node.agent.runtime}" for node in job.history]
        job.comes(lambda: not any(map(processes_with, marks)), "the end of all processes", 2)
        for node in job.history:
            found = [path for path in node.agent.runtime.rglob("*") if path.is_file() or path.is_socket()]
            files = [path for path in found if "index" not in path.relative_to(node.agent.runtime).parts]
            assert not files or node.agent.process.returncode < 0, f"{node.name} left {files}"


def _short(incident: dict) -> dict:  # type: ignore[type-arg]  # JSON
    exit = (incident["first"] or {"exit": {}})["exit"]
    short = {
        key: incident[key] for key in ("failure_class", "summary", "node_id", "round_index", "exit_code", "decision")
    }
    return short | {"rank": exit.get("global_rank", incident["elsewhere_rank"])}
