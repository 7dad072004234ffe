"""How far a source is: before a batch, and once its pieces are read."""

from __future__ import annotations

from millstream.api.sources import Collector, SourceSpec
from millstream.durations import micros
from millstream.ops.times.progress import BEGIN, Reached, SourceProgress
from millstream.ops.times.shares import Shares, Spell
from millstream.run.sources.tracking import Tracker
from millstream.state.manifests import SourceState


def progress_of(
    spec: SourceSpec, state: SourceState, tracker: Tracker, now: int, since: int, read: int
) -> SourceProgress:
    """The progress of a source at the start of a batch, with the pieces for it taken.

    Nobody is idle for having been silent while nobody listened, before `since`, or was held back:
    what they sent then still waits. Nor for what came and has not been taken yet: `read` is the
    clock up to which all has, unless the tracker knows better.
    """
    declared = frozenset(spec.participants or ())
    horizon = tracker.horizon(now, since)
    read = read if horizon.taken is None else horizon.taken
    since = max(since, horizon.since)
    # Agents say that they are there also when they have nothing to send.
    heard = {who: at for who, at in horizon.heard.items() if isinstance(who, str)}
    idle: frozenset[str] = frozenset()
    silent = False
    if isinstance(spec, Collector):
        declared = spec.expected(state.latest)
        idle = frozenset(getattr(tracker, "paused", ()))
    if spec.idle_timeout is not None and not spec.bounded:
        timeout = micros(spec.idle_timeout, "idle_timeout")
        last = dict.fromkeys(declared, since)
        last |= {who: int(at * 1e6) for who, at in state.seen_at.items()}
        last |= {who: max(at, last.get(who, at)) for who, at in heard.items()}
        idle |= {who for who, at in last.items() if read - max(at, since) > timeout}
        silent = read - max(int(state.heard * 1e6), since, *heard.values()) > timeout
    return SourceProgress(
        spec.lateness_micros(),
        dict(state.latest),
        idle,
        ended=tracker.ended,
        silent=silent,
        horizon=horizon,
        awaited=declared - state.latest.keys() - idle,
        undeclared=spec.bounded and spec.participant is not None and not declared,
        top=BEGIN if state.top is None else state.top,
        shares=_shares(spec, state),
    )


def state_after(
    before: SourceState, tracker: Tracker, seen: SourceProgress, report: Reached, now: int
) -> SourceState:
    """Where a source is once its pieces are read, of which tasks report how far they came."""
    tracker.reached(report.files, now)
    state = SourceState(seen_at=dict(before.seen_at), heard=before.heard)
    tracker.save(state)
    state.seen_at.update(dict.fromkeys(report.latest, now / 1e6))
    if report.top > BEGIN:
        state.heard = now / 1e6
    state.latest, state.top = seen.latest, None if seen.top == BEGIN else seen.top
    state.ended = tracker.ended
    return state


def _shares(spec: SourceSpec, state: SourceState) -> Shares | None:
    """What became of the records of a source, if its policy may keep some from its steps."""
    if not spec.overload.sheds:
        return None
    spells = tuple(Spell(*one) for one in state.shares)
    return Shares(spec.overload.keep == "oldest", spells, state.unplaced)
