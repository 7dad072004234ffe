"""Random flows of updaters, as data that prints well: a recipe is built into a flow when needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

import millstream as ms

Row = dict[str, Any]
NAMES = ("a", "b", "c", "ä/%")
BASE = datetime(2024, 2, 29, 23, 59, 30, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Brief:
    """Prints only what is not as usual."""

    def __repr__(self) -> str:
        shown = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)  # type: ignore[arg-type]
            if getattr(self, one.name) != one.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


# -- what updaters do ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Publish(Brief):
    """When to publish to which stream, under which key."""

    stream: str
    packed: bool  # the value is one number, not a dict
    when: int  # only values that leave this remainder by 3; 3: all
    key: str  # "same", "next" or "none"


@dataclass(frozen=True, repr=False)
class Behaviour(Brief):
    """What an updater does, in the order of its fields."""

    remember: str = "path"  # count, sum, last, path
    raises: int = -1  # on this value, after it has changed the slate and published
    deletes: int = -1
    replaces: int = -1
    grows: bool = False
    emits: str = "none"  # none, one, some
    publishes: tuple[Publish, ...] = ()
    timer: str = "none"  # none, after, at, recurring
    period: float = 7.0
    timer_raises: bool = False


def facts(event: Any) -> tuple[int, int]:
    """The value of an event and how many times it may be published on."""
    value = event.value
    if value is None:
        return 0, 0
    if isinstance(value, int):
        return value % 10, value // 10
    return value["v"], value["hops"]


class Updater:
    """A behaviour as an update function."""

    def __init__(self, how: Behaviour) -> None:
        self.how = how

    def update(self, event: Any, slate: Row, ctx: Any) -> Any:
        v, hops = facts(event)
        slate["hops"] = hops
        return self._do(event, slate, ctx, v, hops)

    def on_timer(self, event: Any, slate: Row, ctx: Any) -> Any:
        assert event.value is None and event.stream == "timer"
        if self.how.timer_raises and slate.get("n", 0) % 2:
            slate["n"] = 1000
            raise ValueError("odd timers are refused")
        slate["timers"] = slate.get("timers", 0) + 1
        if self.how.timer == "recurring":
            ctx.timer(after=timedelta(seconds=self.how.period))
        return self._do(event, slate, ctx, slate["timers"] % 10, slate.get("hops", 0), timer=True)

    def _do(self, event: Any, slate: Row, ctx: Any, v: int, hops: int, timer: bool = False) -> Any:
        how = self.how
        at = (event.ts - EPOCH) // timedelta(microseconds=1)
        assert ctx.ts == event.ts
        slate["n"] = slate.get("n", 0) + 1
        match how.remember:
            case "sum":
                slate["t"] = slate.get("t", 0) + v
            case "last":
                slate["last"] = [*slate.get("last", []), (v, event.stream, at)][-3:]
            case "path":  # any other order gives another number
                step = v + crc32(f"{event.stream} {at} {event.key!r}".encode())
                slate["path"] = (slate.get("path", 0) * 31 + step) % 1_000_003
        if how.grows:
            slate["text"] = slate.get("text", "") + "x" * 9
        if hops > 0:
            for one in how.publishes:
                if one.when in (3, v % 3):
                    self._publish(one, event, slate, ctx, v, hops - 1)
        if not timer:
            self._set_timer(event, slate, ctx, v)
            if v == how.deletes:
                ctx.delete()
            if v == how.replaces:
                ctx.replace({"n": 100, "replaced": [v, None, 1.5]})
            if v == how.raises:
                raise ValueError(f"{v} is refused")
        if how.emits == "some":
            return self._several(event, slate, v, hops)
        if how.emits == "one":
            return self._row(event, slate, v, hops)
        return None

    def _publish(self, one: Publish, event: Any, slate: Row, ctx: Any, v: int, hops: int) -> None:
        name = event.key if isinstance(event.key, str) else repr(event.key)
        match one.key:
            case "next":
                name = NAMES[(slate["n"] + v) % len(NAMES)]
            case "none" if v == 1:
                name = None
        v = (v + slate.get("path", 0)) % 10
        ctx.publish(one.stream, name, hops * 10 + v if one.packed else {"v": v, "hops": hops})

    def _set_timer(self, event: Any, slate: Row, ctx: Any, v: int) -> None:
        period = timedelta(seconds=self.how.period)
        match self.how.timer:
            case "after" if v % 2:
                ctx.timer(after=period)
            case "at":  # in the past as well: then a microsecond later
                ctx.timer(at=event.ts + period * (v % 3 - 1))
            case "recurring" if "recurs" not in slate:
                slate["recurs"] = True
                ctx.timer(after=period)

    def _row(self, event: Any, slate: Row, v: int, hops: int) -> Row:
        key = event.key if isinstance(event.key, str) else repr(event.key)
        path = slate.get("path", slate["n"])
        return {"k": key, "k2": path % 3, "v": path % 10, "hops": hops, "note": event.stream}

    def _several(self, event: Any, slate: Row, v: int, hops: int) -> Iterator[Row]:
        for number in range(v % 3):
            yield {**self._row(event, slate, v, hops), "v": number}


def added(event: Any, slate: Row, ctx: Any) -> None:
    """For merge: the order of events does not matter."""
    v, hops = facts(event)
    if v == 3:
        raise ValueError("three is refused")
    slate["n"] = slate.get("n", 0) + 1
    slate["t"] = slate.get("t", 0) + v
    slate["most"] = max(slate.get("most", 0), hops)


def merged(one: Row, other: Row) -> Row:
    return {
        "n": one["n"] + other["n"],
        "t": one["t"] + other["t"],
        "most": max(one["most"], other["most"]),
    }


# -- steps on the way to an updater ----------------------------------------------------------------


def picky(row: Row) -> Row | None:
    if row["v"] == 7:
        raise ValueError("seven is refused")
    return None if row["v"] == 8 else row


def twice(row: Row) -> Iterator[Row]:
    yield row
    yield {**row, "v": (row["v"] + 1) % 10}


def unpacked(row: Row) -> Row:
    """A published record in the form of others."""
    value = row["value"]
    if isinstance(value, int):
        value = {"v": value % 10, "hops": value // 10}
    return {"k": row["key"], "k2": value["v"] % 3, **value}


def counted(row: Row) -> Row:
    """A result of a window in the form of others."""
    return {"k": row["k"], "k2": row["n"] % 3, "v": (row["t"] or 0) % 10, "hops": row["n"] % 3}


STEPS = {
    "where v > 2": lambda s: s.where("v > 2"),
    "map picky": lambda s: s.map(picky),
    "flat_map twice": lambda s: s.flat_map(twice),
    "fork": lambda s: s.where("v > 4").union(s.map(picky)),
    "select": lambda s: s.select("k", "k2", "v", "hops"),
    "window 10s": lambda s: _windowed(s, ms.tumbling("10s")),
    "window 15s by 5s": lambda s: _windowed(s, ms.sliding("15s", "5s")),
}


def _windowed(stream: ms.Stream, cut: Any) -> ms.Stream:
    rows = stream.key_by("k").window(cut).agg(n=ms.count(), t=ms.sum("v"))
    return rows.map(counted)


# -- recipes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Feed(Brief):
    """An input of an updater: where it comes from, through which steps, keyed by what."""

    origin: str  # in0, s0, u0 ...
    steps: tuple[str, ...] = ()
    keys: tuple[str, ...] = ("k",)
    nulls: str = "dead"


@dataclass(frozen=True, repr=False)
class Node(Brief):
    """An updater."""

    feeds: tuple[Feed, ...]
    how: Behaviour
    order: str = "event"
    late: str = "apply"
    ttl: float | None = None
    max_slate: int = 1 << 20
    merge: bool = False


@dataclass(frozen=True, repr=False)
class Recipe(Brief):
    """A flow: sources by lateness, streams (early ones are declared before sources), updaters."""

    lateness: tuple[float, ...]
    streams: tuple[str, ...]
    updaters: tuple[Node, ...]
    early: bool = False
    window: str | None = None  # over the output of the last updater

    def build(self) -> ms.Flow:
        """The flow; its sinks are heard_<stream>, out_<updater>, late_<updater> and windows."""
        flow = ms.Flow("random updaters")
        known: dict[str, ms.Stream] = {}
        if self.early:
            known |= {name: flow.stream(name) for name in self.streams}
        for number, lateness in enumerate(self.lateness):
            source = ms.Generator(tuple, time="ts", lateness=timedelta(seconds=lateness))
            known[f"in{number}"] = flow.source(source, name=f"in{number}")
        if not self.early:
            known |= {name: flow.stream(name) for name in self.streams}
        for name in self.streams:
            known[name].sink(ms.Memory(), name=f"heard_{name}")
        for number, node in enumerate(self.updaters):
            known[f"u{number}"] = self._add(known, f"u{number}", node)
        if self.window is not None:
            last = known[f"u{len(self.updaters) - 1}"]
            STEPS[self.window](last).sink(ms.Memory(), name="windows")
        return flow

    def _add(self, known: dict[str, ms.Stream], name: str, node: Node) -> ms.Stream:
        feeds = []
        for feed in node.feeds:
            stream = known[feed.origin]
            if feed.origin.startswith("s") and feed.keys != ("key",):
                stream = stream.map(unpacked)
            for step in feed.steps:
                stream = STEPS[step](stream)
            feeds.append(stream.key_by(*feed.keys, nulls=feed.nulls))
        options: dict[str, Any] = {
            "name": name,
            "order": node.order,
            "late": node.late,
            "max_slate": node.max_slate,
        }
        keyed = feeds[0].union(*feeds[1:])
        if node.merge:
            return keyed.update(added, **options, merge=merged)
        updater = Updater(node.how)
        made = keyed.update(
            updater.update,
            **options,
            on_timer=None if node.how.timer == "none" else updater.on_timer,
            ttl=None if node.ttl is None else timedelta(seconds=node.ttl),
            publishes=[one.stream for one in node.how.publishes],
        )
        if node.how.emits != "none":
            made.sink(ms.Memory(), name=f"out_{name}")
        if node.late == "divert":
            made.late().select("*").sink(ms.Memory(), name=f"late_{name}")
        return made


# -- strategies ------------------------------------------------------------------------------------

MOMENTS = st.one_of(
    st.integers(0, 60).map(lambda s: s * 1_000_000),
    st.integers(0, 60_000_000),
    st.integers(0, 12).map(lambda s: s * 5_000_000 - 1),
)


def rows(least: int, most: int) -> st.SearchStrategy[list[Row]]:
    one = st.fixed_dictionaries(
        {
            "ts": MOMENTS.map(lambda us: BASE + timedelta(microseconds=us)),
            "k": st.sampled_from([*NAMES[:3], *NAMES[:3], NAMES[3], None]),
            "k2": st.integers(0, 2),
            "v": st.integers(0, 9),
            "hops": st.integers(0, 3),
        }
    )
    return st.lists(one, min_size=least, max_size=most)


Batches = list[dict[str, list[Row]]]


@st.composite
def inputs(draw: Any, sources: int, most: int = 10) -> Batches:
    """Batches; of every source at most one piece in each."""
    return [
        {f"in{number}": draw(rows(0, most)) for number in range(sources)}
        for _ in range(draw(st.integers(1, 4)))
    ]


@st.composite
def behaviours(draw: Any, streams: dict[str, bool]) -> Behaviour:
    """What an updater that may publish to these streams does."""
    publishes = []
    for stream, packed in streams.items():
        when, key = draw(st.integers(0, 3)), draw(st.sampled_from(["same", "next", "none"]))
        publishes.append(Publish(stream, packed, when, key))
    return Behaviour(
        remember=draw(st.sampled_from(["count", "sum", "last", "path", "path"])),
        raises=draw(st.sampled_from([-1, 3])),
        deletes=draw(st.sampled_from([-1, 5])),
        replaces=draw(st.sampled_from([-1, 6])),
        grows=draw(st.integers(0, 5)) == 0,
        emits=draw(st.sampled_from(["none", "one", "some"])),
        publishes=tuple(publishes),
        timer=draw(st.sampled_from(["none", "none", "after", "at", "recurring"])),
        period=draw(st.sampled_from([0.5, 5.0, 7.0, 30.0])),
        timer_raises=draw(st.booleans()),
    )


@st.composite
def feeds(draw: Any, origins: list[str]) -> Feed:
    origin = draw(st.sampled_from(origins))
    if origin.startswith("s") and draw(st.booleans()):
        return Feed(origin, (), ("key",), draw(st.sampled_from(["dead", "keep"])))
    steps = tuple(draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=2)))
    if "flat_map twice" in steps or not origin.startswith("in"):
        steps = tuple(step for step in steps if step != "fork")
    keys = draw(st.sampled_from([("k",), ("k",), ("k2",), ("k", "k2")]))
    return Feed(origin, steps, keys, draw(st.sampled_from(["dead", "keep"])))


def _way(feed: Feed) -> tuple[str, str]:
    """Rows of one record that come to one key on two ways have no order."""
    return feed.origin, "text" if feed.keys in (("k",), ("key",)) else repr(feed.keys)


def _all_reached(updaters: list[Node]) -> list[Node]:
    """The same, with a source for those no record would ever reach."""
    while True:
        known: set[str] = set()
        for _ in updaters:
            for number, node in enumerate(updaters):
                if any(one.origin.startswith("in") or one.origin in known for one in node.feeds):
                    known |= {f"u{number}", *(one.stream for one in node.how.publishes)}
        lost = [i for i in range(len(updaters)) if f"u{i}" not in known]
        if not lost:
            return updaters
        node = updaters[lost[0]]
        updaters[lost[0]] = replace(node, feeds=(*node.feeds, Feed("in0")))


@st.composite
def recipes(draw: Any, sources: int, *, late: bool = True, most: int = 4) -> Recipe:
    """A flow; with `late` its updaters differ in what they do about order."""
    lateness = tuple(draw(st.sampled_from([0.0, 3.0, 1000.0])) for _ in range(sources))
    number = draw(st.integers(1, most))
    kinds = {f"s{i}": draw(st.booleans()) for i in range(draw(st.integers(0, 3)))}
    owners = {name: draw(st.integers(0, number - 1)) for name in kinds}
    orders = ["event"]  # of all that are in one cycle there must be one
    if late:
        orders = draw(st.sampled_from([["event"], ["event"], ["arrival"], ["event", "arrival"]]))
    updaters: list[Node] = []
    for index in range(number):
        before = [f"u{i}" for i, one in enumerate(updaters) if one.how.emits != "none"]
        before = [name for name in before if not updaters[int(name[1:])].merge]
        origins = [f"in{i}" for i in range(sources)] * 2 + list(kinds) * 2 + before
        wanted = st.lists(feeds(origins), min_size=1, max_size=most - 1, unique_by=_way)
        some = tuple(draw(wanted))
        mine = {
            name: packed
            for name, packed in kinds.items()
            if owners[name] == index or draw(st.integers(0, 3)) == 0
        }
        node = Node(
            some,
            draw(behaviours(mine)),
            order=draw(st.sampled_from(orders)),
            late=draw(st.sampled_from(["apply", "divert"])) if late else "apply",
            ttl=draw(st.sampled_from([None, None, 2.0, 10.0, 25.0])),
            max_slate=draw(st.sampled_from([1 << 20, 1 << 20, 90])),
        )
        if not mine and node.order == "arrival" and draw(st.booleans()):
            node = replace(node, merge=True, how=Behaviour(), late="apply", ttl=None)
        updaters.append(node)
    updaters = _all_reached(updaters)
    last = updaters[-1]
    window = None
    if last.how.emits != "none" and not last.merge:
        window = draw(st.sampled_from([None, "window 10s", "window 15s by 5s"]))
    return Recipe(lateness, tuple(kinds), tuple(updaters), draw(st.booleans()), window)
