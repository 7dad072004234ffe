"""Columns as users name them: one, several, or pairs of one here and one there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
