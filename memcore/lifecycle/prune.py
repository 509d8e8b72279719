"""Which memories have faded, or are kept longer than they may be? What `prune` chooses, and why.

An episodic memory has faded when both its importance and its recency are low; it goes to the cold tier, from which
`restore` brings it back. A `Retention` says how long memories of a kind or a scope may be kept at all; what is older is
erased. Recency is exp(-lambda * age), and exp(-lambda * age) < tau just where age > ln(1 / tau) / lambda: so the choice
is a comparison of whole microseconds, and no exponential is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

from memcore import clock, gate, ids
from memcore.errors import InvalidInput
from memcore.schema import decimal
from memcore.store.snapshot import EVERY, Mask, Snapshot

BOOL = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
_OLDEST = int(np.iinfo(np.int64).max)  # an age that no memory reaches


def fading_age(recency_below: float, decay_rate: float) -> int:
    """The age in µs from which recency is below a bound: older than this, and only then. `decay_rate` is per hour.

    By both numbers as their digits say, in decimals: float64 is a microsecond off from 25 years on (rate 1e-6, 0.8).
    """
    if recency_below <= 0 or decay_rate <= 0:
        return _OLDEST
    with localcontext() as context:
        context.prec = 60
        age = -Decimal(repr(recency_below)).ln() / Decimal(repr(decay_rate)) * clock.HOUR
        return int(min(age, Decimal(_OLDEST)))


def faded(event_time: I64, importance: F32, now: int, importance_below: float, age: int) -> BOOL:
    """Which memories, by time in µs and float32 importance, are of less importance than a bound and older than an age.

    The bound is taken as float32 too, as which importance is kept: 0.3 is not below 0.3.
    """
    return _older(event_time, now, age) & (importance < np.float32(importance_below))


def _older(event_time: I64, now: int, age: int) -> BOOL:
    before = now - age
    if before < np.iinfo(np.int64).min:
        return np.zeros(len(event_time), dtype=np.bool_)
    return event_time < np.int64(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long memories may be kept: `prune` erases those whose event is more than `days` ago.

    `kind` None is every kind. `scope` None is every scope; else (tenant, project) or (tenant, project, session), which
    are compared whole. What is erased cannot be restored, and lies in no file any more after `compact()`.
    """

    days: float
    kind: str | None = None
    scope: tuple[str, str] | tuple[str, str, str] | None = None

    def __post_init__(self) -> None:
        days = gate.number(self.days, "Retention.days")
        if days <= 0:
            raise InvalidInput(f"Retention.days is {gate.digits(days)}; it must be above 0: use forget to keep none")
        if self.kind is not None:
            gate.kind(self.kind, "Retention.kind")
        if self.scope is None:
            return
        given: object = self.scope
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
            raise InvalidInput(
                f"Retention.scope is {gate.shown(given)}; pass (tenant, project) or (tenant, project, session), or "
                "None for every scope"
            )
        names = ("Retention.scope's tenant", "Retention.scope's project", "Retention.scope's session")
        parts = (gate.scope_id(part, name) for part, name in zip(given, names, strict=False))
        object.__setattr__(self, "scope", tuple(parts))

    @property
    def age(self) -> int:
        """In µs."""
        return min(int(self.days * clock.DAY), _OLDEST)

    def concerns(self, tenant_id: str, project_id: str) -> bool:
        return self.scope is None or self.scope[:2] == (tenant_id, project_id)

    @property
    def session(self) -> str | None:
        return self.scope[2] if self.scope is not None and len(self.scope) == 3 else None

    def __str__(self) -> str:
        told = {"kind": self.kind, "scope": self.scope}
        parts = [f"days={self.days:g}", *(f"{name}={value!r}" for name, value in told.items() if value is not None)]
        return f"Retention({', '.join(parts)})"

    def overdue(self, event_time: I64, now: int) -> BOOL:
        """Which memories, by time in µs, have been kept too long."""
        return _older(event_time, now, self.age)

    def why(self, age_hours: float) -> str:
        return f"it is {age_hours / 24:.1f} days old, and {self} keeps it for {self.days:g}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a memory must be below to have faded. `decay_rate` is per hour."""

    importance_below: float
    recency_below: float
    decay_rate: float

    def faded(self, event_time: I64, importance: F32, now: int) -> BOOL:
        age = fading_age(self.recency_below, self.decay_rate)
        return faded(event_time, importance, now, self.importance_below, age)

    def why(self, importance: float, recency: float) -> str:
        return (
            f"importance {importance:g} is below {self.importance_below:g}, and recency {recency:.2g} is below "
            f"{self.recency_below:g}"
        )


def fading(snapshot: Snapshot, masks: Sequence[Mask], bounds: Bounds, now: int) -> tuple[I64, list[Pruned]]:
    """The faded ones of the memories that the masks let through: their positions, and what to tell of them."""
    chosen = _positions(snapshot, masks, lambda times, importance: bounds.faded(times, importance, now))
    return chosen, _told(snapshot, chosen, now, bounds.decay_rate, lambda i, recency, _: bounds.why(i, recency))


def overdue(snapshot: Snapshot, masks: Sequence[Mask], rule: Retention, now: int, decay_rate: float) -> list[Pruned]:
    """What is to be told of the memories that the masks let through and that a policy does not let stay."""
    chosen = _positions(snapshot, masks, lambda times, _: rule.overdue(times, now))
    return _told(snapshot, chosen, now, decay_rate, lambda _, __, age_hours: rule.why(age_hours))


def _positions(snapshot: Snapshot, masks: Sequence[Mask], choose: Callable[[I64, F32], BOOL]) -> I64:
    """The positions of the rows that the masks let through and that are chosen by time and importance."""
    chosen = []
    for part, mask in zip(snapshot.parts, masks, strict=True):
        rows = choose(part.columns["event_time"], part.columns["importance"])
        chosen.append((rows if mask is EVERY else rows & (mask != 0)).view(np.uint8))
    return snapshot.positions(chosen)


def passed(snapshot: Snapshot, masks: Sequence[Mask]) -> int:
    """How many rows the masks let through."""
    return sum(
        part.n if mask is EVERY else int(np.count_nonzero(mask))
        for part, mask in zip(snapshot.parts, masks, strict=True)
    )


def versions(snapshot: Snapshot, chosen: I64) -> I64:
    """The positions of all versions, which aren't forgotten, of the memories at some positions."""
    names = set(zip(*(half.tolist() for half in snapshot.halves(chosen)), strict=True))
    every = snapshot.positions_with(names)
    forgotten = snapshot.values(every, "forgotten_seq")
    kept: I64 = every[(forgotten == 0) | (forgotten > snapshot.seq)]
    return kept


def _told(
    snapshot: Snapshot, chosen: I64, now: int, decay_rate: float, why: Callable[[float, float, float], str]
) -> list[Pruned]:
    """The memories at some positions for a report; `why` by importance, recency and age in hours."""
    made = []
    cells = (snapshot.values(chosen, name).tolist() for name in ("id_hi", "id_lo", "importance", "event_time"))
    for hi, lo, importance, event_time in zip(*cells, strict=True):
        age = max(now - event_time, 0) / clock.HOUR
        recency, importance = math.exp(-decay_rate * age), decimal(importance)
        made.append(
            Pruned(
                ids.to_text(hi, lo), snapshot.tenant_id, snapshot.project_id, importance, recency, age,
                why(importance, recency, age),
            )
        )  # fmt: skip
    return made


def policies(given: object) -> tuple[Retention, ...]:
    """The gate for `retention=`: one policy or several."""
    if isinstance(given, Retention):
        return (given,)
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        several = tuple(given)
        if all(isinstance(one, Retention) for one in several):
            return several
    raise InvalidInput(
        f"retention is {gate.shown(given)}; pass a list of memcore.Retention, such as "
        "[memcore.Retention(kind='episodic', days=90)]"
    )


@dataclass(frozen=True, slots=True)
class Pruned:
    """One memory that `prune` let go, and why."""

    id: str
    tenant_id: str
    project_id: str
    importance: float
    recency: float
    age_hours: float
    why: str


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What `prune` did, or would do if `dry_run`: `moved` to the cold tier, and `erased` since a policy says so.

    `examined`: the memories that were looked at. `changed`: ids that were left, since somebody changed them meanwhile.
    """

    moved: list[Pruned] = field(default_factory=list)
    erased: list[Pruned] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    examined: int = 0
    dry_run: bool = False

    @property
    def ids(self) -> list[str]:
        """Of what was moved, and can be brought back by `restore`."""
        return [one.id for one in self.moved]

    @property
    def count(self) -> int:
        return len(self.moved) + len(self.erased)

    def __len__(self) -> int:
        return self.count

    def __int__(self) -> int:
        return self.count

    def explain(self) -> str:
        """A line for each memory: what becomes of it, or would if it is a dry run, and why."""
        lines = [f"{one.id} to the cold tier: {one.why}" for one in self.moved]
        erased = "would be erased" if self.dry_run else "erased"
        return "\n".join([*lines, *(f"{one.id} {erased}: {one.why}" for one in self.erased)])


def joined(reports: Sequence[PruneReport], dry_run: bool) -> PruneReport:
    """The reports of several scopes as one."""
    return PruneReport(
        [one for report in reports for one in report.moved],
        [one for report in reports for one in report.erased],
        [id for report in reports for id in report.changed],
        sum(report.examined for report in reports),
        dry_run,
    )
