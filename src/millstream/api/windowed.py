"""Streams cut into windows, and what is asked of these windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.api import aggregates
from millstream.api.arguments import check_call, function
from millstream.api.closing import ClosingPolicy
from millstream.api.early import ESTIMATE, MARKS
from millstream.api.elsewhere import NoKey, too_late, unnamed
from millstream.api.frames import plainly
from millstream.api.mapreduce import MapReduce
from millstream.api.windows import WindowSpec
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.graph.changing import tells_fidelity
from millstream.ops.emitting.firing import FINAL, Emission
from millstream.ops.times.fidelity import COLUMNS as FIDELITY

if TYPE_CHECKING:
    from millstream.api.keyed import KeyedStream
    from millstream.api.stream import Stream


EVICTED = ("tumbling", "sliding", "hopping", "landmark")  # windows whose bounds time alone gives


@plainly
class WindowedStream:
    """A keyed stream cut into windows."""

    def __init__(
        self,
        keyed: KeyedStream,
        window: WindowSpec,
        emission: Emission | None = None,
        policy: ClosingPolicy | None = None,
        fidelity: bool = False,
    ) -> None:
        self.keyed = keyed
        self.spec = window
        self.emission = emission or FINAL
        self.policy, self.fidelity = policy, fidelity

    def __repr__(self) -> str:
        return f"{self.keyed!r}, window {self.spec}"

    if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

        def __getattr__(self, name: str) -> Any:
            if name == "window":
                raise NoKey(
                    "window(): there is a window already; windows over results come after "
                    'agg(): .agg(n=ms.count()).key_by("symbol").window(...)'
                )
            raise too_late("a stream in windows", name, ".agg(n=ms.count()) or .reduce(fn)")

    def agg(self, /, *without_name: Any, **aggs: Any) -> Stream:
        """One row per window and key: the key columns, window_start, window_end and these."""
        if without_name:
            raise unnamed(without_name)
        taken = {*self.keyed.keys, "window_start", "window_end"}
        taken |= {"early": {"revision", "final"}, "delta": {"op"}}.get(self.emission.mode, set())
        if self.emission.mode == "snapshot":
            more = {*MARKS, *(name + end for name in aggs for end in ESTIMATE[1:])}
            aggregates.free(self.keyed.keys, more, "key_by")
            taken |= more
        taken |= set(FIDELITY) if self.fidelity else set()
        checked = aggregates.checked(aggs, "agg", taken)
        keyed = self.keyed._computing(checked)
        if self._inherits(checked):
            inherited = aggregates.mean("fidelity")
            return self._add(keyed, "agg", True, aggs=(*checked.items(), ("fidelity", inherited)))
        return self._add(keyed, "agg", aggs=tuple(checked.items()))

    def _inherits(self, aggs: dict[str, Any]) -> bool:
        """Whether results stand on others that say how much of their input they stand on.

        Where the program itself does something with that column, it knows better.
        """
        plain = self.spec.kind in EVICTED and self.emission.mode == "final"
        names = {*aggs, *self.keyed.keys}
        return plain and names.isdisjoint(FIDELITY) and tells_fidelity(self.keyed.stream.node)

    def reduce(self, reducer: Callable[..., Any]) -> Stream:
        """`reducer(key, records, window)` gives a dict, several, a plain value, or None.

        Records are dicts in (ts, source, offset) order.
        """
        if isinstance(reducer, MapReduce):
            return self.map_reduce(reducer)
        check_call("reduce()", function("reduce", reducer), "key", "records", "window")
        return self._add(self.keyed, "reduce", reducer=reducer)

    def map_reduce(self, job: Any, *, sorted: bool = False) -> Stream:
        """A MapReduce job over these windows."""
        if self.emission.mode != "final" and sorted:
            raise ConfigError("map_reduce(sorted=True): sorted output leaves once, as final")
        return self.keyed.map_reduce(
            job,
            self.spec,
            sorted=sorted,
            emission=self.emission,
            policy=self.policy,
            fidelity=self.fidelity,
        )

    def _add(self, keyed: KeyedStream, stem: str, inherits: bool = False, **fields: Any) -> Stream:
        taken = ("window_start", "window_end", *(FIDELITY if self.fidelity else ()))
        for name in keyed.keys:
            if name in taken:
                raise ConfigError(f"key_by({name!r}): that name is taken by the window's columns")
        return keyed.stream._add(
            nodes.Windowed,
            stem,
            keys=keyed.keys,
            window=self.spec,
            null_keys=keyed.nulls,
            partition=keyed.partition,
            emission=self.emission,
            policy=self.policy,
            fidelity=self.fidelity or inherits,
            **fields,
        )


def check_closing(window: WindowSpec) -> None:
    """Refuse to evict windows of which nobody can say how much has come."""
    if window.kind in EVICTED:
        return
    why = "a session ends with its last record, so its end is not known before it is over"
    if window.kind != "session":
        why = "it ends with a number of records, so how much of it has come says nothing of who"
    raise ConfigError(
        f"window({window}, close=): {why}; closing policies and fidelity= are for tumbling, "
        "sliding and hopping windows and landmarks over time. idle_timeout= of the source lets "
        "these go on without somebody who is silent"
    )


def emission_of(
    window: WindowSpec,
    emit: str,
    every: Duration | None,
    every_rows: int | None,
    every_event: Duration | None,
) -> Emission:
    """When results of these windows leave, as `emit` and `every...` say."""
    if emit not in ("final", "early", "delta"):
        raise ConfigError(f'window(emit={emit!r}): use "final", "early" or "delta"')
    given = [one for one in (every, every_rows, every_event) if one is not None]
    if emit != "early" and given:
        raise ConfigError('window(): every=, every_rows= and every_event= go with emit="early"')
    if every_event is not None and window.span.calendar is not None:
        raise ConfigError(
            f"window({window}, every_event=): windows of a calendar are not cut finer than they "
            "are; use every= or every_rows="
        )
    if emit == "early" and not given:
        raise ConfigError(
            'window(emit="early"): say when, with every="10s" (wall clock), every_rows=1000 or '
            'every_event="1m"'
        )
    if emit != "final" and window.span.whole:
        raise ConfigError(
            f"window(emit={emit!r}): over the whole input a result leaves once; for what there is "
            "so far at every slide use ms.landmark(slide)"
        )
    if every_rows is not None and (not isinstance(every_rows, int) or every_rows < 1):
        raise ConfigError(f"window(every_rows={every_rows!r}): expected a whole number from 1")
    return Emission(
        emit,
        micros(every, "window(every=)") if every is not None else 0,
        every_rows or 0,
        micros(every_event, "window(every_event=)") if every_event is not None else 0,
    )
