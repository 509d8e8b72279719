"""Which numbers does recall use unless told otherwise? The weights of the score and the rates of decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import numpy as np

from memcore import gate
from memcore.errors import InvalidInput


class Weights(NamedTuple):
    """The shares of the score: total = alpha * relevance + beta * exp(-lambda * age_hours) + gamma * importance."""

    alpha: float = 0.5
    beta: float = 0.3
    gamma: float = 0.2


DEFAULT_WEIGHTS = Weights()
_LEAST_HALF_LIFE = timedelta(microseconds=1) / timedelta(hours=1)

DECAY_PRESETS: dict[str, float] = {
    "default": 0.01,  # half-life 69.3 hours
    "focused": 0.1,  # half-life 6.9 hours: live debugging
    "balanced": 0.05,  # half-life 13.9 hours
    "lasting": 0.005,  # half-life 138.6 hours: assistants
}


UNDO_DAYS = 7  # so long what was forgotten can be restored, unless `compact` is called before


def half_life_hours(decay_rate: float | str) -> float:
    """The hours after which recency has halved: ln 2 / lambda. `decay_rate` is per hour, or a preset's name."""
    rate = decay(decay_rate, None)
    return math.inf if rate == 0 else math.log(2) / rate


def weights(value: object) -> Weights:
    """Three numbers in [0, 1] whose sum is 1 within 1e-6: a tuple, a list, an array or a `Weights`."""
    if value is None:
        return DEFAULT_WEIGHTS
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise InvalidInput(
            f"weights is {gate.shown(value)}; pass three numbers (alpha, beta, gamma) for relevance, recency and "
            "importance, such as (0.5, 0.3, 0.2)"
        )
    alpha, beta, gamma = (_share(share, name) for share, name in zip(value, Weights._fields, strict=True))
    total = alpha + beta + gamma
    if abs(total - 1) > 1e-6:
        raise InvalidInput(
            f"weights ({alpha:g}, {beta:g}, {gamma:g}) sum to {total:.9g}; alpha + beta + gamma must be 1: "
            "divide each by their sum"
        )
    return Weights(alpha, beta, gamma)


def _share(value: object, name: str) -> float:
    got = gate.number(value, f"weights.{name}")
    if not 0.0 <= got <= 1.0:
        raise InvalidInput(f"weights.{name} is {gate.digits(got)}; it must be in [0, 1], and the three must sum to 1")
    return got


def decay(rate: object, half_life: object, default: float = DECAY_PRESETS["default"]) -> float:
    """Lambda per hour from a rate, a preset's name or a half-life in hours (or a timedelta); at most one of them.

    A rate of 0 is no decay. Times are counted in microseconds, so a half-life is at least one.
    """
    if rate is not None and half_life is not None:
        raise InvalidInput(
            f"decay_rate is {gate.brief(rate)} and half_life is {gate.brief(half_life)}; pass one of them "
            "(half_life = ln 2 / decay_rate)"
        )
    if half_life is not None:
        if isinstance(half_life, timedelta):
            half_life = half_life / timedelta(hours=1)
        hours = gate.number(half_life, "half_life (hours or a timedelta)")
        if hours < _LEAST_HALF_LIFE:
            raise InvalidInput(
                f"half_life is {hours:g} hours; it must be at least a microsecond: for no decay pass decay_rate=0"
            )
        return math.log(2) / hours
    if rate is None:
        return default
    if isinstance(rate, str):
        if rate not in DECAY_PRESETS:
            names = ", ".join(f"{name} ({value:g}/h)" for name, value in DECAY_PRESETS.items())
            raise InvalidInput(
                f"decay_rate is {gate.brief(rate)}; the presets are {names}: name one or pass a number per hour"
            )
        return DECAY_PRESETS[rate]
    value = gate.number(rate, "decay_rate")
    if value < 0:
        raise InvalidInput(f"decay_rate is {value:g}; it is per hour and at least 0: pass 0 for no decay")
    return value


@dataclass(frozen=True, slots=True)
class WorkingLimits:
    """How much the live conversation of one session and role holds: entries, and tokens if `tokens` is given."""

    capacity: int = 20
    tokens: int | None = None
