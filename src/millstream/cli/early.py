"""Early answers on the command line: what the options ask for."""

from __future__ import annotations

from pathlib import Path

from millstream.api.early import Bounds, Looks, looks, rel_error, time_limit
from millstream.errors import ConfigError


def looks_of(
    snapshots: str | None,
    until: str | None,
    within: str | None,
    publish: Path | None,
    step: str | None = None,
) -> Looks | None:
    """What `--snapshots`, `--until`, `--within` and `--publish` ask for; None: a plain run."""
    if snapshots is None and until is None and within is None and publish is None:
        if step is not None:
            raise ConfigError(f"--step {step}: goes with --snapshots, --until or --within")
        return None
    at = None if snapshots is None else [_share("--snapshots", s) for s in snapshots.split(",")]
    bounds = Bounds()
    if until is not None:
        bounds |= rel_error(_share("--until", until))
    if within is not None:
        bounds |= time_limit(within)
    return looks(at, None, bounds, publish=publish, step=step)


def _share(option: str, text: str) -> float:
    """A share as people write it: 25%, or 0.25."""
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ConfigError(f"{option} {text}: expected a share of at most 100%, like 25% or 0.25")
    return found
