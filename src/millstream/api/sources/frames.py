"""DataFrames of Spark as sources, so that whatever Spark can read can be read here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.api.frames import plainly
from millstream.api.sources.timing import Timing, fill
from millstream.errors import ConfigError


@plainly
@dataclass(frozen=True)
class Frame(Timing):
    """The rows of a batch DataFrame.

    They are written to the checkpoint once, by Spark's tasks, when the flow first starts; what is
    read after a restart is the same whatever the DataFrame would give then.
    """

    df: Any = field(default=None, compare=False, repr=False)

    streams = False

    def __init__(self, df: Any, **options: Any) -> None:
        fill(self, type(self), {"df": df, **options})

    def __post_init__(self) -> None:
        super().__post_init__()
        step = type(self).__name__
        if self.df is None:
            return  # in a worker, which reads what was written
        if not hasattr(self.df, "isStreaming") or not hasattr(self.df, "mapInArrow"):
            raise ConfigError(
                f"{step}(df): expected a DataFrame of Spark, got {type(self.df).__name__}"
            )
        if bool(self.df.isStreaming) is not self.streams:
            kinds = ("a batch", "ms.Frame"), ("a streaming", "ms.FrameStream")
            here, there = kinds if not self.streams else reversed(kinds)
            raise ConfigError(
                f"{step}(df): expected {here[0]} DataFrame; write {there[1]}(df) for this one"
            )
        columns = list(self.df.columns)
        if self.time is not None and self.time not in columns:
            raise ConfigError(
                f"{step}(time={self.time!r}): there is no such column; there are "
                f"{', '.join(columns)}"
            )

    @property
    def bounded(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{**vars(self), "df": None}), ()


@dataclass(frozen=True, init=False)
class FrameStream(Frame):
    """The rows of a streaming DataFrame: every micro-batch of Spark's is read once.

    available_now: end with what is there when the flow starts, instead of waiting for more.
    checkpoint: where Spark keeps how far its query is; by default in the checkpoint of the flow,
        which Spark cannot write to if that is in an object store.
    """

    available_now: bool = field(default=False, kw_only=True)
    checkpoint: str | None = field(default=None, kw_only=True)

    streams = True

    @property
    def bounded(self) -> bool:
        return False
