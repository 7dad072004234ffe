"""Window kinds: what `stream.key_by(...).window(...)` takes."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.durations import Duration, micros, text
from millstream.errors import ConfigError
from millstream.ops.spans import Span


@dataclass(frozen=True)
class WindowSpec:
    """A window over event time: `[start, end)`, aligned to the epoch, UTC.

    `span` says when it can close and what is late; windows over rows or bytes have the arithmetic
    of their own numbering in `logical`.
    """

    kind: str
    span: Span
    logical: Span | None = None

    def __str__(self) -> str:
        if self.span.whole:
            return "whole input"
        if self.logical is not None:
            return f"{self.kind}_window({self.logical.size}, {self.logical.slide})"
        if self.kind == "session":
            return f"session({text(self.span.size)})"
        if self.span.size == self.span.slide:
            return f"{self.kind}({text(self.span.size)})"
        return f"{self.kind}({text(self.span.size)}, {text(self.span.slide)})"


WHOLE = WindowSpec("whole", Span(0, 0))


def tumbling(size: Duration) -> WindowSpec:
    """Windows side by side: each record is in exactly one."""
    width = micros(size, "tumbling(size)")
    return WindowSpec("tumbling", Span(width, width))


def sliding(size: Duration, slide: Duration) -> WindowSpec:
    """Windows of `size`, a new one every `slide`; they overlap if `slide` is smaller."""
    width, step = micros(size, "sliding(size)"), micros(slide, "sliding(slide)")
    if step > width:
        raise ConfigError(
            f"sliding({size!r}, {slide!r}): the slide is longer than the size, so records in "
            "between would be in no window; if that is meant, use hopping(size, slide)"
        )
    return WindowSpec("sliding", Span(width, step))


def hopping(size: Duration, slide: Duration) -> WindowSpec:
    """Windows of `size` every `slide`; with a longer slide, records in the gaps are dropped."""
    return WindowSpec(
        "hopping", Span(micros(size, "hopping(size)"), micros(slide, "hopping(slide)"))
    )


def landmark(slide: Duration) -> WindowSpec:
    """One window that never ends and grows: everything so far, at every `slide`.

    A key has a result at each slide in which it got records; `window_start` is null.
    """
    step = micros(slide, "landmark(slide)")
    return WindowSpec("landmark", Span(step, step))


def session(gap: Duration) -> WindowSpec:
    """Per key, records less than `gap` apart: from the first to the last plus the gap."""
    return WindowSpec("session", Span(micros(gap, "session(gap)"), 1))


def count_window(size: int, slide: int | None = None) -> WindowSpec:
    """The last `size` records of each key, at every `slide` records (default: `size`).

    Records are counted in (ts, source, offset) order. After `key_by()` without columns they are
    counted over the whole stream. At the end of the input the windows begun leave unfilled.
    """
    return WindowSpec("count", Span(1, 1), _numbered("count_window", size, slide))


def bytes_window(size: int, slide: int | None = None) -> WindowSpec:
    """Like `count_window`, over the bytes of records instead of their number.

    A record has as many bytes as its columns: strings their UTF-8 length, numbers and times 8,
    booleans 1, nulls 0; at least 1. It is in the window in which it begins.
    """
    return WindowSpec("bytes", Span(1, 1), _numbered("bytes_window", size, slide))


def _numbered(name: str, size: int, slide: int | None) -> Span:
    step = size if slide is None else slide
    for what, value in (("size", size), ("slide", step)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}({what}): expected a whole number from 1, got {value!r}")
    return Span(size, step)
