"""Closing policies: when a window leaves although not all of its input has come.

Windows leave in order. Before every batch the policy of a step is asked about the oldest open
window, and, if that leaves, about the next. A complete window leaves whatever the policy says.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.api.frames import plainly
from millstream.durations import Duration, micros, text
from millstream.errors import ConfigError
from millstream.ops.times.fidelity import OpenWindow, Participant

__all__ = ["ClosingPolicy", "OpenWindow", "Participant", "evict", "watermark"]


class ClosingPolicy:
    """Says when the oldest open window leaves. Subclass it with `closes` for one of your own.

    It is asked in the driver, so it may look at whatever it likes. `a | b` is the first of both
    that says so, `a & b` says so when both do.
    """

    def closes(self, window: OpenWindow) -> str | None:
        """Why the window leaves now, in a word for the column `closed_by`; None: it stays open."""
        raise NotImplementedError

    def __or__(self, other: ClosingPolicy) -> ClosingPolicy:
        return _Either((self, _policy("|", other)))

    def __and__(self, other: ClosingPolicy) -> ClosingPolicy:
        return _Both((self, _policy("&", other)))


def _policy(sign: str, other: object) -> ClosingPolicy:
    if not isinstance(other, ClosingPolicy):
        raise ConfigError(f"closing policies: expected a policy beside {sign}, got {other!r}")
    return other


@dataclass(frozen=True)
class _Watermark(ClosingPolicy):
    """Only what is complete leaves."""

    def closes(self, window: OpenWindow) -> str | None:
        """Never before."""
        return None

    def __str__(self) -> str:
        return "watermark()"


@dataclass(frozen=True)
class _Evict(ClosingPolicy):
    """CMR's three policies; the first that holds."""

    timeout: int | None = None  # microseconds
    fidelity: float | None = None
    failure_after: int | None = None

    def closes(self, window: OpenWindow) -> str | None:
        """Whichever holds."""
        if self.timeout is not None and window.open_for * 1e6 >= self.timeout:
            return "timeout"
        if self.fidelity is not None and window.fidelity >= self.fidelity:
            return "fidelity"
        limit = self.failure_after
        if limit is not None and all(
            one.done or one.silent * 1e6 >= limit for one in window.participants
        ):
            return "failure"
        return None

    def __str__(self) -> str:
        said = [
            f"timeout={text(self.timeout)}" if self.timeout is not None else "",
            f"fidelity={self.fidelity}" if self.fidelity is not None else "",
            f"failure_after={text(self.failure_after)}" if self.failure_after is not None else "",
        ]
        return f"evict({', '.join(filter(None, said))})"


@dataclass(frozen=True)
class _Either(ClosingPolicy):
    of: tuple[ClosingPolicy, ...]

    def closes(self, window: OpenWindow) -> str | None:
        """The first that says so."""
        return next((why for one in self.of if (why := one.closes(window))), None)

    def __str__(self) -> str:
        return " | ".join(map(str, self.of))


@dataclass(frozen=True)
class _Both(ClosingPolicy):
    of: tuple[ClosingPolicy, ...]

    def closes(self, window: OpenWindow) -> str | None:
        """All of them."""
        found = [one.closes(window) for one in self.of]
        return "+".join(why for why in found if why) if all(found) else None

    def __str__(self) -> str:
        return " & ".join(f"({one})" if isinstance(one, _Either) else str(one) for one in self.of)


@plainly
def watermark() -> ClosingPolicy:
    """Windows leave when every participant has passed their end by the lateness: the default."""
    return _Watermark()


@plainly
def evict(
    *,
    timeout: Duration | None = None,
    fidelity: float | None = None,
    failure_after: Duration | None = None,
) -> ClosingPolicy:
    """The oldest open window leaves, complete or not, as soon as one of these holds.

    timeout: it has been the oldest for so long, by the wall clock.
    fidelity: this share of its input is there (0 to 1), averaged over participants.
    failure_after: nobody works on it any more: every participant has passed its end by the
        lateness, or was silent for so long.
    """
    if timeout is None and fidelity is None and failure_after is None:
        raise ConfigError(
            'evict(): say when, with timeout="60s", fidelity=0.9 or failure_after="5s"'
        )
    if fidelity is not None:
        number = isinstance(fidelity, int | float) and not isinstance(fidelity, bool)
        if not number or not 0 < fidelity <= 1:
            raise ConfigError(f"evict(fidelity={fidelity!r}): expected a share above 0, at most 1")
    return _Evict(
        None if timeout is None else micros(timeout, "evict(timeout=)"),
        None if fidelity is None else float(fidelity),
        None if failure_after is None else micros(failure_after, "evict(failure_after=)"),
    )


def closes_early(policy: ClosingPolicy | None) -> bool:
    """Whether a policy can say anything that the watermark does not."""
    if isinstance(policy, _Either):
        return any(map(closes_early, policy.of))
    if isinstance(policy, _Both):
        return all(map(closes_early, policy.of))
    return policy is not None and not isinstance(policy, _Watermark)
