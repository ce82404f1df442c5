"""What comes out of a race: who took how long beside what was modelled, who won, and under which load."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from loadmaster.search import Result

OURS = "our plan"


@dataclass(frozen=True)
class Contender:
    """One that ran: what was modelled and what happened.

    Attributes:
        name: of the default or the plan.
        modelled_ns: None where there is no model of it.
        measured_ns: median.
        low_ns, high_ns: quartiles.
        modelled_bytes, measured_bytes: of the largest peak, where known.
        basis: what the model rests on.
    """

    name: str
    modelled_ns: int | None
    measured_ns: int
    low_ns: int
    high_ns: int
    modelled_bytes: int | None
    measured_bytes: int | None
    basis: str


@dataclass(frozen=True)
class Recalibration:
    """A step on one device as it was modelled for the race, and as it is from now on.

    Attributes:
        before_ns: as it was modelled.
        after_ns: as it is modelled from now on.
        measured_ns: what it took.
    """

    before_ns: int
    after_ns: int
    measured_ns: int

    def __str__(self) -> str:
        before, after, measured = (f"{ns / 1e6:.2f} ms" for ns in (self.before_ns, self.after_ns, self.measured_ns))
        return f"recalibrated: a step on one device, measured {measured}, was modelled {before} and is now {after}"


@dataclass(frozen=True)
class Load:
    """Other work on the machine during a race.

    Attributes:
        reference_ns: what a call that never changes took then, the median over rounds.
        quietest_ns: what it takes at its quietest; 0 where no quiet moment is known.
    """

    reference_ns: int
    quietest_ns: int

    def __str__(self) -> str:
        what = "others used this machine during the race"
        if self.quietest_ns:
            what += (
                f": a bare call took {self.reference_ns / self.quietest_ns:.1f} times what it takes when it is quiet"
            )
        return f"{what}; modelled and measured steps cannot be compared"


@dataclass(frozen=True, eq=False)
class RaceResult:
    """Who ran, and the plan that was up against them.

    Attributes:
        rows: who ran.
        result: the plan.
        failed: who could not run, and why.
        recalibrated: where a step on one device was looked into op by op.
        load: where others used the machine meanwhile.
    """

    rows: tuple[Contender, ...]
    result: Result
    failed: dict[str, str]
    recalibrated: Recalibration | None = None
    load: Load | None = None

    @property
    def _ours(self) -> Contender:
        return next(row for row in self.rows if row.name == OURS)

    @property
    def _rival(self) -> Contender:
        return min((row for row in self.rows if row.name != OURS), key=lambda row: row.measured_ns)

    @property
    def won(self) -> bool:
        """Faster than all others, by more than the spread of the measurements."""
        return self._ours.high_ns < self._rival.low_ns

    @property
    def verdict(self) -> str:
        ours, rival = self._ours, self._rival
        ratio = rival.measured_ns / ours.measured_ns
        if self.won:
            return f"our plan won: {ratio:.2f}x faster than {rival.name}"
        if rival.high_ns < ours.low_ns:
            return f"our plan lost: {rival.name} is {1 / ratio:.2f}x faster; use {rival.name}"
        return f"our plan and {rival.name} cannot be told apart ({ratio:.2f}x, within the spread); use {rival.name}"

    def as_data(self) -> dict[str, Any]:
        rows = [asdict(row) for row in self.rows]
        again, load = (None if part is None else asdict(part) for part in (self.recalibrated, self.load))
        kept = {"verdict": self.verdict, "failed": self.failed, "recalibrated": again, "load": load}
        return {"rows": rows, "won": self.won, **kept}
