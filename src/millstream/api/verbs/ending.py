"""Where records leave: sinks, views, and what came too late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from millstream.api.elsewhere import one_of
from millstream.api.frames import plainly
from millstream.api.sinks import Redis, SinkSpec
from millstream.api.sources import Kafka
from millstream.api.verbs.point import Point
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.operators.view import Kept

if TYPE_CHECKING:
    from millstream.api.stream import Stream


@plainly
class Ending(Point):
    """Ways out of a flow."""

    def late(self) -> Stream:
        """The records that came too late for the windows or the updater of this stream.

        For a MapReduce job these are the pairs of its `map`, key and value as JSON.
        """
        node = self.node
        if not isinstance(node, nodes.Keyed):
            raise ConfigError(
                f"late(): {node.name!r} is not windowed; call it on the result of agg(), "
                "reduce(), map_reduce(), update(), distinct(), dedup() or last()"
            )
        if isinstance(node, nodes.Update) and node.job.late != "divert":
            raise ConfigError(
                f"late(): {node.name!r} applies late events; to set them aside use "
                'update(..., late="divert")'
            )
        late = self.flow.add(nodes.Late, f"{node.name}.late", inputs=node.inputs, of=node)
        return self._to(late)

    def sink(self, sink: SinkSpec, *, name: str | None = None) -> Self:
        """Send the records of this stream somewhere; gives the stream back."""
        if not isinstance(sink, SinkSpec):
            if isinstance(sink, type) and issubclass(sink, SinkSpec):
                raise ConfigError(
                    f"sink(): ms.{sink.__name__} is a class; make one of it, as in "
                    f"memory = ms.Memory(); stream.sink(memory)"
                )
            if callable(sink):
                raise ConfigError("sink(): to hand results to a function use ms.Call(fn)")
            raise ConfigError(
                f"sink(): expected {one_of(SinkSpec)}, got {type(sink).__name__}"
                + (f"; write ms.Parquet({sink!r})" if isinstance(sink, str | Path) else "")
            )
        if isinstance(sink, Redis):
            self._check_redis(sink)
        if isinstance(sink, Kafka):
            sink.check_sink()
        self.flow.add(nodes.Sink, type(sink).__name__.lower(), (self.node,), name=name, spec=sink)
        return self

    def view(self, name: str) -> Self:
        """Keep the rows of this stream as a table that can be read; gives the stream back.

        `ms.views(checkpoint, name)` reads it, and so do SQL, HTTP and the command line, while the
        flow runs and afterwards. Records stay for ever, rows of changes until they are taken back.
        """
        return self._keep(name)

    def _keep(self, name: str, query: str = "", schema: pa.Schema | None = None) -> Self:
        """The same, with what SQL knows of it."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"view({name!r}): expected a name")
        for node in self.flow.nodes:
            if isinstance(node, Kept) and node.view == name:
                raise ConfigError(f"view({name!r}): flow {self.flow.name!r} has one of that name")
        self.flow.add(
            Kept, "view", (self.node,), name=f"{name}.view", view=name, query=query, schema=schema
        )
        return self

    def _check_redis(self, sink: Redis) -> None:
        slates = isinstance(self.node, nodes.Update)
        if slates and (sink.columns or sink.ttl is not None):
            raise ConfigError(
                f"sink(ms.Redis(...)): {self.name!r} is an updater, and its slates are mirrored "
                "under their own keys with their own ttl; leave out key= and ttl=. To mirror the "
                "records it gives, put a step in between, like .where('true')"
            )
        if not slates and not sink.columns:
            raise ConfigError(
                f"sink(ms.Redis(...)): say which column of {self.name!r} names a row, with key="
            )
        for node in self.flow.nodes:
            if isinstance(node, nodes.Sink) and isinstance(node.spec, Redis):
                same = (node.spec.address.shown, node.spec.prefix) == (
                    sink.address.shown,
                    sink.prefix,
                )
                if same and node.inputs == (self.node,):
                    raise ConfigError(
                        f"sink(ms.Redis(...)): {self.name!r} is mirrored there already, by "
                        f"{node.name!r}; give one of them another prefix="
                    )
