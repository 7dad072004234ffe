"""Overload policies: what a source, or the stream of an updater, does with more than can be done.

They are given where a source is described, `ms.Files("in/", overload=ms.drop())`, and to an
updater, `.update(fn, overload=ms.divert("overflow"))`.
"""

from __future__ import annotations

from typing import Any

from millstream.api.frames import plainly
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.ops.overload import UNTIL, Overload
from millstream.sizes import bytes_of

__all__ = ["Overload", "check_overload", "divert", "drop", "throttle"]

_KEPT = ("newest", "oldest")


@plainly
def throttle(when: int | str = "64MB") -> Overload:
    """Nothing is lost: files and Kafka wait where they are, senders are held back. The default.

    when: bytes that were received and not yet processed at which senders wait (of an updater: bytes
        of due events at which its sources are not read on).
    """
    return Overload("throttle", when=bytes_of(when, "throttle(when=)"))


@plainly
def drop(
    keep: str | None = None,
    *,
    when: int | str = "64MB",
    lag: Duration | None = None,
    until: float = UNTIL,
) -> Overload:
    """What is too much is counted, logged, and not processed.

    keep: whether the "newest" or the "oldest" of what waits is processed; by default the newest at
        a source, and the oldest at an updater, which then drops what comes.
    when: bytes that wait when this sets in. lag: or how far event time is behind the clock then.
    until: the share of these at which it is over.
    """
    return _shedding("drop", keep, None, when, lag, until)


@plainly
def divert(
    stream: str,
    *,
    keep: str | None = None,
    when: int | str = "64MB",
    lag: Duration | None = None,
    until: float = UNTIL,
) -> Overload:
    """What is too much goes to a stream of its own, `flow.stream(name)`, with other steps.

    stream: its name. keep: whether the "newest" (the default at a source) or the "oldest" of what
        waits stays; an updater diverts what comes.
    when: bytes that wait when this sets in. lag: or how far event time is behind the clock then.
    until: the share of these at which it is over.
    """
    if not isinstance(stream, str) or not stream:
        raise ConfigError(
            f'divert({stream!r}): expected the name of a stream, like divert("overflow") and '
            'flow.stream("overflow")'
        )
    return _shedding("divert", keep, stream, when, lag, until)


def _shedding(
    kind: str,
    keep: str | None,
    stream: str | None,
    when: int | str,
    lag: Duration | None,
    until: float,
) -> Overload:
    if keep is not None and keep not in _KEPT:
        raise ConfigError(
            f'{kind}(keep={keep!r}): which of the records that wait are processed, "newest" or '
            '"oldest"'
        )
    number = isinstance(until, int | float) and not isinstance(until, bool)
    if not number or not 0 < until <= 1:
        raise ConfigError(
            f"{kind}(until={until!r}): expected a share of when= and lag=, above 0 and at most 1, "
            "like 0.5"
        )
    return Overload(
        kind,
        keep,
        stream,
        bytes_of(when, f"{kind}(when=)"),
        None if lag is None else micros(lag, f"{kind}(lag=)"),
        float(until),
    )


def check_overload(step: str, given: Any) -> None:
    """Refuse what is no policy."""
    if not isinstance(given, Overload):
        raise ConfigError(
            f"{step}(overload={given!r}): expected ms.throttle(), "
            'ms.drop(keep="newest") or ms.divert("overflow")'
        )
