"""A point of a flow, where steps go on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from millstream.api.frames import plainly
from millstream.errors import ConfigError
from millstream.graph import nodes

if TYPE_CHECKING:
    from millstream.api.flow import Flow
    from millstream.api.stream import Stream


@plainly
class Point:
    """What all verbs stand on: the flow, the step before, and adding the next one."""

    def __init__(self, flow: Flow, node: nodes.Node) -> None:
        self.flow = flow
        self.node = node

    @property
    def name(self) -> str:
        """The name of the step this stream comes from."""
        return self.node.name

    def named(self, name: str) -> Stream:
        """The same stream under a name of your own, for plans, ledger and state."""
        return self._to(self.flow.rename(self.node, name))

    def _to(self, node: nodes.Node) -> Stream:
        return cast("Stream", type(self)(self.flow, node))

    def _add(self, cls: type[nodes.Node], stem: str, *others: Point, **fields: Any) -> Stream:
        inputs = (self.node, *(other.node for other in others))
        return self._to(self.flow.add(cls, stem, inputs, **fields))

    def _check_stream(self, step: str, other: Any) -> None:
        """Refuse what this stream cannot be put together with."""
        if not isinstance(other, Point):
            raise ConfigError(f"{step}(): expected streams, got {type(other).__name__}")
        if other.flow is not self.flow:
            raise ConfigError(
                f"{step}(): stream {other.name!r} belongs to flow {other.flow.name!r}, this one "
                f"to {self.flow.name!r}; a flow cannot use the streams of another"
            )
