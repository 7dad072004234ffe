"""Window kinds: what `stream.key_by(...).window(...)` takes."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.api.calendars import calendar_of
from millstream.api.frames import plainly
from millstream.durations import Duration, micros, text
from millstream.errors import ConfigError
from millstream.ops.times.spans import Span


@dataclass(frozen=True)
class WindowSpec:
    """A window over event time: `[start, end)`, aligned to the epoch, UTC.

    `span` says when it can close and what is late; windows over rows or bytes have the arithmetic
    of their own numbering in `logical`.
    """

    kind: str
    span: Span
    logical: Span | None = None
    over: str = "key"  # whose rows or bytes are counted: those of each "key", or of the "stream"
    said: str = ""  # what else its description says
    growing: bool = False  # a landmark over rows or bytes: nothing ever leaves the window

    def __repr__(self) -> str:
        return f"ms.{self}" if not self.span.whole else "the whole input"

    def __str__(self) -> str:
        if self.span.whole:
            return "whole input"
        if self.logical is not None:
            over = ', over="stream"' if self.over == "stream" else ""
            if self.growing:
                unit = "rows" if self.kind == "count" else "bytes"
                return f"landmark({unit}={self.logical.slide}{over})"
            return f"{self.kind}_window({self.logical.size}, {self.logical.slide}{over})"
        if self.kind == "session":
            return f"session({text(self.span.size)})"
        if self.said:
            return f"{self.kind}({self.said})"
        if self.span.size == self.span.slide:
            return f"{self.kind}({text(self.span.size)})"
        return f"{self.kind}({text(self.span.size)}, {text(self.span.slide)})"


WHOLE = WindowSpec("whole", Span(0, 0))


@plainly
def tumbling(size: Duration, *, zone: str | None = None, start: str | None = None) -> WindowSpec:
    """Windows side by side: each record is in exactly one.

    size: also months and years, "1mo" or "1y".
    zone: days, weeks, months and years are those of this zone, like "America/New_York"; a day may
        then have 23 or 25 hours.
    start: when windows begin: "monday" (weeks), "06:00" or "monday 06:00". Without it they are
        counted from 1970-01-01, a Thursday.
    """
    calendar = calendar_of(size, zone, start)
    if calendar is None:
        width = micros(size, "tumbling(size)")
        return WindowSpec("tumbling", Span(width, width))
    length = size if isinstance(size, str) else text(calendar.size)
    said = [length, *(f'{n}="{v}"' for n, v in (("zone", zone), ("start", start)) if v is not None)]
    width = calendar.width
    return WindowSpec("tumbling", Span(width, width, 0, calendar), said=", ".join(said))


@plainly
def sliding(size: Duration, slide: Duration) -> WindowSpec:
    """Windows of `size`, a new one every `slide`; they overlap if `slide` is smaller."""
    width, step = micros(size, "sliding(size)"), micros(slide, "sliding(slide)")
    if step > width:
        raise ConfigError(
            f"sliding({size!r}, {slide!r}): the slide is longer than the size, so records in "
            "between would be in no window; if that is meant, use hopping(size, slide)"
        )
    return WindowSpec("sliding", Span(width, step))


@plainly
def hopping(size: Duration, slide: Duration) -> WindowSpec:
    """Windows of `size` every `slide`; with a longer slide, records in the gaps are dropped."""
    return WindowSpec(
        "hopping", Span(micros(size, "hopping(size)"), micros(slide, "hopping(slide)"))
    )


@plainly
def landmark(
    slide: Duration | None = None,
    *,
    rows: int | None = None,
    bytes: int | None = None,
    over: str = "key",
) -> WindowSpec:
    """One window that never ends and grows: everything so far, at every `slide`.

    A key has a result at each slide in which it got records; `window_start` is null. Instead of
    time a slide may have so many `rows` or `bytes`, of each key or, with over="stream", of all.
    """
    if sum(one is not None for one in (slide, rows, bytes)) != 1:
        raise ConfigError(
            'landmark(): say how long a slide is in one way: landmark("1m"), landmark(rows=1000) '
            "or landmark(bytes=1_000_000)"
        )
    if slide is not None:
        if over != "key":
            raise ConfigError(
                f"landmark({slide!r}, over={over!r}): over= says whose rows or bytes are counted, "
                "and goes with rows= or bytes="
            )
        step = micros(slide, "landmark(slide)")
        return WindowSpec("landmark", Span(step, step))
    kind, name, size = ("count", "rows", rows) if rows is not None else ("bytes", "bytes", bytes)
    numbered = _numbered("landmark", size, None, name)
    return WindowSpec(kind, Span(1, 1), numbered, _whose("landmark", over), growing=True)


@plainly
def session(gap: Duration) -> WindowSpec:
    """Per key, records less than `gap` apart: from the first to the last plus the gap."""
    return WindowSpec("session", Span(micros(gap, "session(gap)"), 1))


@plainly
def count_window(size: int, slide: int | None = None, over: str = "key") -> WindowSpec:
    """The last `size` records of each key, at every `slide` records (default: `size`).

    Records are counted in (ts, source, offset) order. With over="stream" those of all keys are
    counted together, and each key that has records in a window has a result for it. At the end of
    the input the windows begun leave unfilled.
    """
    numbered = _numbered("count_window", size, slide)
    return WindowSpec("count", Span(1, 1), numbered, _whose("count_window", over))


@plainly
def bytes_window(size: int, slide: int | None = None, over: str = "key") -> WindowSpec:
    """Like `count_window`, over the bytes of records instead of their number.

    A record has as many bytes as its columns: strings their UTF-8 length, numbers and times 8,
    booleans 1, nulls 0; at least 1. It is in the window in which it begins.
    """
    numbered = _numbered("bytes_window", size, slide)
    return WindowSpec("bytes", Span(1, 1), numbered, _whose("bytes_window", over))


def _numbered(name: str, size: int | None, slide: int | None, what: str = "size") -> Span:
    step = size if slide is None else slide
    for option, value in ((what, size), ("slide", step)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}({option}): expected a whole number from 1, got {value!r}")
    assert size is not None and step is not None
    return Span(size, step)


def _whose(name: str, over: str) -> str:
    if over not in ("key", "stream"):
        raise ConfigError(
            f'{name}(over={over!r}): use "key" (the records of each key are counted) or "stream" '
            "(those of all keys together)"
        )
    return over
