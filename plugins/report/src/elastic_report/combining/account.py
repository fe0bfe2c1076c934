"""The account of a run: sums over all lanes, both goodput formulas, and what caused the lost time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_core.api.tools import duration_text
from elastic_report.combining.lanes import Lane
from elastic_report.combining.seconds import FORMING, state_share
from elastic_report.ledger.states import LOST, ORDER, LedgerState
from elastic_report.model import Account, IncidentRow, LostTime, Ratio

_LEAST_S: Final = 0.05
"""Less lost time than this is not listed."""
_SMALL_SHARE: Final = 0.02
"""A share of the redone time that no text mentions."""
_SHOWN: Final = 3
"""How many causes the sentence has."""
_RESUMING: Final = (
    LedgerState.RESTORING,
    LedgerState.STOPPING,
    LedgerState.DECIDING,
    LedgerState.RESTARTING,
)
"""The states that NVIDIA's formula counts as resume, in each round."""


class Sums(Record, frozen=True, kw_only=True):
    """Node-seconds of all lanes."""

    states: Mapping[LedgerState, float]
    first_start_s: float
    """How much of `rendezvous` and `starting` belongs to the run's first round: no resume in NVIDIA's formula."""
    bound_s: float
    """How much of the productive time may have been redone."""


def sums_of(lanes: Iterable[Lane], seconds: Iterable[Mapping[LedgerState, float]]) -> Sums:
    """Return the sums.

    Args:
        lanes: All lanes.
        seconds: The seconds of each lane's states.
    """
    states = dict.fromkeys(ORDER, 0.0)
    first_s = bound_s = 0.0
    for lane, own in zip(lanes, seconds, strict=True):
        for state, value in own.items():
            states[state] += value
        bound_s += lane.bound_s
        first_s += lane.first_start_s
    productive_s = states[LedgerState.PRODUCTIVE]
    return Sums(
        states={state: value for state, value in states.items() if value > 0},
        first_start_s=first_s,
        bound_s=min(bound_s, productive_s),
    )


def goodput_of(sums: Sums) -> Ratio | None:
    """Return Google's goodput: productive time, of the time since the agents' starts. `None` without time.

    Source: github.com/AI-Hypercomputer/ml-goodput-measurement, `goodput_utils.py`: badput is all time of the job that
    is not productive, and steps that are executed again are not productive.
    """
    queued_s = state_share(sums.states, LedgerState.QUEUED)
    productive_s = state_share(sums.states, LedgerState.PRODUCTIVE)
    return _ratio(productive_s - sums.bound_s, productive_s, sum(sums.states.values()) - queued_s)


def goodput_nvidia_of(sums: Sums) -> Ratio | None:
    """Return NVIDIA's goodput: (t_w - t_ch - t_rm - t_re - t_save) / (t_w - t_re). `None` without time.

    t_w is all time, t_ch lost work (redone and hung), t_rm resuming, t_re the scheduler's queue, t_save saving.

    Source: CRE, `api/v1alpha1/goodputmeasurement_types.go`.
    """
    states = sums.states
    queued_s = state_share(states, LedgerState.QUEUED)
    whole_s = sum(states.values()) - queued_s
    lost_s = state_share(states, LedgerState.REDONE, LedgerState.HUNG)
    resume_s = state_share(states, *_RESUMING) + state_share(states, *FORMING) - sums.first_start_s
    kept_s = whole_s - lost_s - resume_s - state_share(states, LedgerState.SAVING)
    return _ratio(kept_s - sums.bound_s, kept_s, whole_s)


def _ratio(low_s: float, high_s: float, whole_s: float) -> Ratio | None:
    if whole_s <= 0:
        return None
    return Ratio(low=min(1.0, max(0.0, low_s / whole_s)), high=min(1.0, max(0.0, high_s / whole_s)))


def account_of(
    sums: Sums,
    *,
    incidents: Sequence[IncidentRow],
    redone_by: Mapping[int, float],
    round_count: int,
    node_count: int,
    attempt_count: int,
    clock_time: Callable[[float], str],
    frozen: bool,
) -> Account:
    """Return the account.

    Args:
        sums: The sums.
        incidents: The run's incidents.
        redone_by: The redone seconds after each incident, by its number.
        round_count: How many rounds the run had.
        node_count: How many nodes the sums have.
        attempt_count: How many attempts of the run they have.
        clock_time: Returns the time of day of a moment of the report.
        frozen: Whether the run is over.
    """
    causes = _Causes(incidents, redone_by, round_count, clock_time)
    lost = sorted(
        (
            LostTime(state=state, seconds=sums.states[state], text=causes.text(state, sums.states[state]))
            for state in LOST
            if sums.states.get(state, 0.0) >= _LEAST_S
        ),
        key=lambda each: -each.seconds,
    )
    present_s = sum(sums.states.values())
    return Account(
        states=sums.states,
        present_s=present_s,
        redone_bound_s=sums.bound_s,
        goodput=goodput_of(sums),
        goodput_nvidia=goodput_nvidia_of(sums),
        lost=tuple(lost),
        sentence=_sentence(lost, present_s, sums.bound_s, node_count, attempt_count),
        frozen=frozen,
    )


class _Causes:
    """Texts about the causes of lost time."""

    def __init__(
        self,
        incidents: Sequence[IncidentRow],
        redone_by: Mapping[int, float],
        round_count: int,
        clock_time: Callable[[float], str],
    ) -> None:
        self._incidents, self._redone_by, self._time = incidents, redone_by, clock_time
        self._failures = _count(len(incidents), "failure")
        self._rounds = f" of {_count(round_count, 'round')}" if round_count else ""

    def text(self, state: LedgerState, seconds: float) -> str:
        """Return `2 h redone after the failure at 02:14, last save 01:20`."""
        return f"{duration_text(seconds)} {self._cause(state, seconds)}"

    def _cause(self, state: LedgerState, seconds: float) -> str:
        after = f" after {self._failures}" if self._incidents else ""
        causes = {
            LedgerState.QUEUED: "queued by the scheduler",
            LedgerState.HUNG: f"hung{self._hang()}",
            LedgerState.DRAINED: "ending after an order to stop",
            LedgerState.EXCLUDED: "excluded by a hook or the policy",
            LedgerState.STORE_OUTAGE: "without the rendezvous store",
            LedgerState.STOPPING: f"stopping workers{after}",
            LedgerState.DECIDING: f"deciding{after}",
            LedgerState.RESTARTING: f"waiting before restarts{after}",
            LedgerState.RENDEZVOUS: f"in the rendezvous{self._rounds}",
            LedgerState.STARTING: f"starting workers{self._rounds}",
            LedgerState.RESTORING: "restoring checkpoints",
            LedgerState.SAVING: "saving checkpoints",
            LedgerState.REDONE: f"redone{self._redone(seconds)}",
        }
        return causes.get(state, state.value)

    def _hang(self) -> str:
        hangs = [row for row in self._incidents if row.incident.hang is not None]
        if len(hangs) != 1:
            return ""
        return f" until the detection at {self._time(hangs[0].at_s + (hangs[0].detect_s or 0.0))}"

    def _redone(self, seconds: float) -> str:
        """Return the failure that cost most of the redone time, with the save before it.

        Steps are executed again also after membership changes, without a failure.
        """
        numbers = [number for number, seconds in self._redone_by.items() if seconds > 0]
        if not numbers:
            return ""
        worst = max(numbers, key=lambda number: self._redone_by[number])
        row = next(row for row in self._incidents if row.number == worst)
        save = "no save is known" if row.last_save_s is None else f"last save {self._time(row.last_save_s)}"
        most = duration_text(self._redone_by[worst])
        others_s = seconds - sum(self._redone_by[number] for number in numbers)
        if others_s >= max(_LEAST_S, _SMALL_SHARE * seconds):
            return f": {most} of it after the failure at {self._time(row.at_s)}, {save}"
        if len(numbers) == 1:
            return f" after the failure at {self._time(row.at_s)}, {save}"
        return f" after {len(numbers)} failures: {most} of it after the one at {self._time(row.at_s)}, {save}"


def _sentence(lost: Sequence[LostTime], present_s: float, bound_s: float, node_count: int, attempt_count: int) -> str:
    if present_s <= 0:
        return "No time was recorded."
    lost_s = sum(each.seconds for each in lost)
    of_nodes = f" on {node_count} nodes together" if node_count > 1 else ""
    of_attempts = f" in {attempt_count} attempts" if attempt_count > 1 else ""
    text = f"{duration_text(lost_s)} of {duration_text(present_s)} lost{of_nodes}{of_attempts}"
    shown = [each.text for each in lost[:_SHOWN]]
    if len(lost) > _SHOWN:
        shown.append(f"{duration_text(sum(each.seconds for each in lost[_SHOWN:]))} by other causes")
    text += f": {'; '.join(shown)}" if shown else ""
    if bound_s >= 1:
        text += f". Steps are not known: up to {duration_text(bound_s)} more may have been redone"
    return f"{text}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
