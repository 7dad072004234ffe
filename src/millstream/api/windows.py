"""Window kinds: what `stream.key_by(...).window(...)` takes."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.graph.durations import Duration, micros, text
from millstream.ops.spans import Span


@dataclass(frozen=True)
class WindowSpec:
    """A window over event time: `[start, end)`, aligned to the epoch, UTC."""

    kind: str
    span: Span

    def __str__(self) -> str:
        if self.span.whole:
            return "whole input"
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
