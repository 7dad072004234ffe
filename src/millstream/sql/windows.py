"""Table functions of time: TUMBLE, HOP, SESSION and CUMULATE as windows of the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlglot import expressions as exp

from millstream.api.windows import WindowSpec, hopping, session, sliding, tumbling
from millstream.durations import micros, text
from millstream.errors import ConfigError
from millstream.io.schemas import TIMESTAMP
from millstream.sql.expressions import quoted
from millstream.sql.intervals import is_plain
from millstream.sql.places import Text
from millstream.sql.relations import Column, Relation
from millstream.sql.statements import duration

Specs = tuple[WindowSpec, ...]
BOUNDS = ("window_start", "window_end")
_CALENDAR = {"month": "mo", "quarter": "q", "year": "y"}
_MOST = 200  # steps of CUMULATE, each of which is a window of its own


def _tumble(size: str) -> Specs:
    return (tumbling(size),)


def _hop(slide: str, size: str) -> Specs:
    overlap = micros(slide, "HOP") <= micros(size, "HOP")
    return (sliding(size, slide) if overlap else hopping(size, slide),)


def _session(gap: str) -> Specs:
    return (session(gap),)


def _cumulate(step: str, size: str) -> Specs:
    """Windows that begin together and end one step after the other."""
    one, whole = micros(step, "CUMULATE"), micros(size, "CUMULATE")
    if whole % one or whole // one > _MOST:
        raise ConfigError(
            f"CUMULATE: {size} must be a multiple of {step}, and at most {_MOST} times as long"
        )
    lengths = [text(one * number) for number in range(1, whole // one)]
    return (*(hopping(length, size) for length in lengths), tumbling(size))


# name -> how many intervals it takes, what they are, and the windows they make
FUNCTIONS: dict[str, tuple[int, str, Callable[..., Specs]]] = {
    "tumble": (1, "size", _tumble),
    "hop": (2, "slide, size", _hop),
    "session": (1, "gap", _session),
    "cumulate": (2, "step, size", _cumulate),
}


def windowed(
    text_: Text, call: exp.Expr, find: Callable[[exp.Expr], Relation]
) -> tuple[Relation, Specs]:
    """`TUMBLE(data, time, size)`: the data with the bounds of its windows as columns."""
    name = call.name.lower()
    count, takes, make = FUNCTIONS[name]
    given = list(call.args.get("expressions") or [])
    place = text_.of(call)
    usage = f"{name.upper()}(data, time, {takes}), with intervals like INTERVAL '1' MINUTE"
    if len(given) != 2 + count:
        raise text_.error(f"expected {usage}; there are {len(given)} arguments", place)
    data, time, *spans = given
    if data.key != "column" or data.args.get("table") is not None:
        raise text_.error(f"expected the name of a stream or view in {usage}", data)
    relation = find(data)
    _check_time(text_, time, relation, usage)
    lengths = [_length(text_, one, usage, months=name == "tumble") for one in spans]
    try:
        specs = make(*lengths)
    except ConfigError as error:
        raise text_.error(str(error), place) from None
    bounds = tuple(Column(one, one, TIMESTAMP) for one in BOUNDS)
    taken = [one.name for one in relation.columns if one.name.lower() in BOUNDS]
    if taken:
        raise text_.error(
            f"{data.name} has a column {taken[0]} already; give it another name first", place
        )
    return replace(relation, columns=(*relation.columns, *bounds)), specs


def assigned(text_: Text, relation: Relation, specs: Specs, at: exp.Expr) -> Relation:
    """Records with the bounds of every window that they are in, once for each."""
    copies = [
        (spec.span.size, spec.span.slide, nth)
        for spec in specs
        if spec.kind in ("tumbling", "sliding", "hopping") and spec.span.calendar is None
        for nth in range(-(-spec.span.size // spec.span.slide))
    ]
    if not copies or len(copies) > _MOST or relation.time is None:
        raise text_.error(
            "these windows are for GROUP BY: add GROUP BY window_start, window_end, ...", at
        )
    moment = f"unix_micros({quoted(relation.time)})"
    parts = []
    for size, slide, nth in copies:
        start = f"{moment} - ({moment} % {slide} + {slide}) % {slide} - {nth * slide}"
        bounds = f"timestamp_micros({start})", f"timestamp_micros({start} + {size})"
        made = relation.stream.select(
            "*", *(f"{one} AS {name}" for one, name in zip(bounds, BOUNDS, strict=True))
        )
        parts.append(
            made if not size % slide else made.where(f"{moment} < unix_micros(window_end)")
        )
    whole = parts[0] if len(parts) == 1 else parts[0].union(*parts[1:])
    return replace(relation, stream=whole)


def _check_time(text_: Text, given: exp.Expr, relation: Relation, usage: str) -> None:
    """Windows go by the event time of the records, so the column must be that."""
    if given.key == "anonymous" and given.name.upper() == "DESCRIPTOR":
        inner = given.args.get("expressions") or []
        if len(inner) == 1:
            given = inner[0]
    if given.key != "column":
        raise text_.error(f"expected the column of event time in {usage}", given)
    known = [one for one in relation.columns if one.name.lower() == given.name.lower()]
    if not known and not relation.open:
        raise text_.error(f"unknown column {given.name!r}", given)
    if relation.time is None or relation.time.lower() != (
        known[0].physical.lower() if known else given.name.lower()
    ):
        raise text_.error(
            f"windows go by event time, and {given.name} is not the event time of this: "
            f"{relation.told_time}",
            given,
        )


def _length(text_: Text, given: exp.Expr, usage: str, *, months: bool) -> str:
    if is_plain(given):
        number, unit = given.this.name, given.args["unit"].name
        calendar = _CALENDAR.get(unit.lower().removesuffix("s"))
        if calendar is not None and months and number.isdigit():
            return f"{number}{calendar}"
        if calendar is not None:
            raise text_.error(
                "months and years are not all of one length: TUMBLE takes whole ones, other "
                "windows none",
                given,
            )
        try:
            return duration(number, unit)
        except ValueError:
            pass
    raise text_.error(f"expected an interval in {usage}", given)
