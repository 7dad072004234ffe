"""What a join compares, as users write it: columns of both sides, and how far times may differ."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from millstream.durations import Duration, micros
from millstream.errors import ConfigError

Columns = str | Iterable[str | tuple[str, str]]


def join_keys(on: Any) -> list[tuple[str, str]]:
    """The pairs of columns that a join compares."""
    told = (
        f'join(on={on!r}): expected a column like "id", several like ["id", "day"], or pairs like '
        '[("id", "car")]'
    )
    if isinstance(on, str):
        on = [on]
    if isinstance(on, dict) or not isinstance(on, Iterable):
        raise ConfigError(told)
    pairs = []
    for one in on:
        pair = (one, one) if isinstance(one, str) else one
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(told)
        if any(not isinstance(name, str) or not name for name in pair):
            raise ConfigError(told)
        pairs.append((pair[0], pair[1]))
    if len(set(pairs)) != len(pairs):
        raise ConfigError(f"join(on={on!r}): a pair of columns is named twice")
    return pairs


def join_bounds(
    how: str, within: Duration | None, between: Iterable[Any] | None
) -> tuple[int, int] | None:
    """How far right records lie after left ones, in microseconds; None: as far as they like."""
    if within is not None and between is not None:
        raise ConfigError("join(): give either within= or between=")
    if within is not None:
        span = micros(within, "join(within=)", zero=True)
        return -span, 0 if how == "asof" else span
    if between is None:
        return None
    if how == "asof":
        raise ConfigError('join(how="asof"): between= has no meaning there; use within=')
    bounds = [between] if isinstance(between, str) else list(between)
    if len(bounds) != 2:
        raise ConfigError(f'join(between={between!r}): expected two durations, like ("-5m", "10m")')
    low, high = (_signed(one) for one in bounds)
    if low > high:
        raise ConfigError(f"join(between={between!r}): the first must not be after the second")
    return low, high


def _signed(duration: Any) -> int:
    """A duration that may be less than nothing."""
    what = "join(between=)"
    if isinstance(duration, str) and duration.strip().startswith(("-", "+")):
        sign, duration = duration.strip()[0], duration.strip()[1:]
        return micros(duration, what, zero=True) * (-1 if sign == "-" else 1)
    if isinstance(duration, timedelta) and duration < timedelta(0):
        return -micros(-duration, what, zero=True)
    return micros(duration, what, zero=True)
