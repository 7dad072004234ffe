"""Streams: the fluent surface over the graph. Every method adds a node and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millstream.api.arguments import check_call, function, no_column
from millstream.api.computed import with_expressions
from millstream.api.elsewhere import STREAMS, NoKey, absent
from millstream.api.frames import plainly
from millstream.api.keyed import KeyedStream
from millstream.api.verbs.ending import Ending
from millstream.api.verbs.peeking import Peeking
from millstream.api.verbs.refusing import Refusing
from millstream.api.verbs.relational import Relational
from millstream.api.verbs.stateless import Stateless
from millstream.api.windows import WindowSpec
from millstream.durations import Duration
from millstream.errors import ConfigError


@plainly
class Stream(Stateless, Relational, Peeking, Ending, Refusing):
    """Records on their way. Use a stream any number of times: each use is a fork."""

    def __repr__(self) -> str:
        return f"Stream {self.flow.told(self.node)}"

    def _repr_svg_(self) -> str | None:
        """A picture of what leads here, for notebooks."""
        before, left = {self.node}, [self.node]
        while left:
            more = [one for one in left.pop().inputs if one not in before]
            before.update(more)
            left += more
        return self.flow._drawn(tuple(one for one in self.flow.nodes if one in before))

    if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

        def __getattr__(self, name: str) -> Any:
            if name in ("window", "update", "agg", "reduce"):
                raise NoKey(
                    f"{name}(): {self.node.name!r} has no key yet; write key_by(...).{name}(...), "
                    "and key_by() for one group of everything"
                )
            raise absent("stream", name, STREAMS, Stream)

    def key_by(
        self, *columns: str, nulls: str = "dead", partition: Callable[[Any], int] | None = None
    ) -> KeyedStream:
        """Group by one or more columns, or SQL expressions, which become columns of the same name.

        A null key is a dead letter, or with `nulls="keep"` a key.

        Without columns everything is one group.
        partition: `partition(key)` gives a number that says which shard a key belongs to (modulo
            the number of shards), instead of its hash; for a MapReduce job it gets the keys that
            `map` gives. It must give the same for a key for as long as the checkpoint lives.
        """
        for column in columns:
            if not isinstance(column, str) or not column:
                raise no_column("key_by", column)
        stream, names = with_expressions(self, columns)
        if len(set(names)) != len(names):
            raise ConfigError(f"key_by(): a column is named twice in {columns}")
        if nulls not in ("dead", "keep"):
            raise ConfigError(f'key_by(nulls={nulls!r}): use "dead" or "keep"')
        if partition is not None:
            check_call("key_by(partition=)", function("key_by(partition=)", partition), "key")
        return KeyedStream(stream, tuple(names), nulls, partition)

    def process(
        self,
        fn: Callable[..., Any],
        *,
        behind: Duration | None = None,
        publishes: Iterable[str] | None = None,
        schema: Any = None,
    ) -> Stream:
        """A function per event, `fn(event, ctx)`: it sees stream, time, key and value.

        What it returns (a dict, several, None) has the time of the event. `ctx.emit(record, ts=)`
        gives a record another time, `ctx.publish(stream, key, value, ts=)` sends an event to a
        stream declared with `flow.stream`, later than this one.
        behind: how far before its event a record may lie; the watermark is held back by it.
        publishes: the streams it publishes to, where that cannot be seen in its code.
        """
        return KeyedStream(self, (), "keep").process(
            fn, behind=behind, publishes=publishes, schema=schema
        )

    def map_reduce(
        self, job: Any, window: WindowSpec | None = None, *, sorted: bool = False
    ) -> Stream:
        """A MapReduce job; without a window over the whole (bounded) input.

        job: a subclass of `ms.MapReduce`, or any program that `ms.job` takes.
        """
        return KeyedStream(self, (), "keep").map_reduce(job, window, sorted=sorted)
