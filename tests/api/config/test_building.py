"""Good files: each gives the flow that the same calls of the API give."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.cli.loading import load_application, load_module
from millstream.graph import nodes
from millstream.testing import run_in_process

SOURCE = """
functions = ["topics.py"]
[source.tweets]
kind = "files"
path = "tweets.jsonl"
time = "at"
"""


@pytest.fixture
def topics(place: Path) -> Any:
    """The functions, for flows written in Python."""
    return load_module(place / "topics.py")


def described(value: Any) -> Any:
    """A node's field so that two flows can be compared: functions by what they are called."""
    if isinstance(value, nodes.Node):
        return value.name
    if isinstance(value, tuple):
        return tuple(described(one) for one in value)
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return value.__qualname__
    if hasattr(value, "__dataclass_fields__"):
        return type(value).__name__, {
            name: described(getattr(value, name)) for name in value.__dataclass_fields__
        }
    if type(value).__module__.startswith("millstream_app"):
        return type(value).__qualname__, vars(value)
    return value if isinstance(value, str | int | float | None.__class__ | dict) else str(value)


def assert_same(found: ms.Flow, wanted: ms.Flow) -> None:
    """The two flows have the same nodes in the same order."""
    assert found.name == wanted.name
    assert [described(node) for node in found.nodes] == [described(node) for node in wanted.nodes]


def test_stateless_steps(load: Any, topics: Any) -> None:
    found = load(
        """
        name = "all steps"
        functions = ["topics.py"]

        [source.tweets]
        kind = "files"
        path = "tweets.jsonl"
        format = "json"
        time = "at"
        lateness = "5s"
        schema = { at = "timestamp", text = "string" }

        [source.more]
        kind = "generator"
        fn = "topics:tweets"
        schema = "at timestamp, text string"
        time = "at"
        replayable = false

        [step.both]
        from = ["tweets", "more"]

        [step.mentions]
        from = "both"
        flat_map = "topics:mentions"
        schema = "topic string, at timestamp"

        [step.loud]
        from = "mentions"
        map = "topics:upper"

        [step.long]
        from = "loud"
        where = "length(topic) > 3"

        [step.named]
        from = "long"
        select = ["topic AS name", "at"]

        [step.same]
        from = "named"
        map_batches = "topics:same_table"

        [step.once]
        from = "named"
        distinct = ["name"]

        [step.table]
        from = "named"
        changes = "name"

        [step.recent]
        from = "table"
        last = "5m"

        [step.counts]
        from = "recent"
        key_by = "name"
        agg.n = "count()"

        [step.totals]
        from = "once"
        key_by = []
        emit = "delta"
        agg.n = "count()"

        [step.best]
        from = "counts"
        key_by = []
        top = 3
        by = ["n", "name ASC"]
        rank = "nth"

        [step.known]
        from = "once"
        join = "table"
        on = [["name", "name"]]
        how = "left"
        suffix = "_there"

        [step.near]
        from = "once"
        join = "named"
        on = "name"
        between = ["-5m", "10m"]

        [step.then]
        from = "once"
        join = "named"
        on = ["name"]
        how = "asof"
        within = "1h"

        [step.common]
        from = "near"
        intersect = "then"
        all = true

        [step.different]
        from = "near"
        difference = "common"

        [step.read]
        from = "different"
        view = "differences"

        [sink.single]
        from = ["once"]
        kind = "console"

        [sink.rows]
        from = ["known", "different", "best", "totals"]
        kind = "console"

        [sink.files]
        from = "same"
        kind = "jsonl"
        path = "out"

        [sink.all]
        from = ["long", "loud"]
        kind = "call"
        fn = "topics:hand_over"
        """
    ).flow
    flow = ms.Flow("all steps")
    tweets = flow.source(
        ms.Files(
            "tweets.jsonl",
            format="json",
            time="at",
            lateness="5s",
            schema={"at": "timestamp", "text": "string"},
        ),
        name="tweets",
    )
    more = flow.source(
        ms.Generator(
            topics.tweets, schema="at timestamp, text string", time="at", replayable=False
        ),
        name="more",
    )
    both = tweets.union(more).named("both")
    mentions = both.flat_map(topics.mentions, schema="topic string, at timestamp").named("mentions")
    loud = mentions.map(topics.upper).named("loud")
    long = loud.where("length(topic) > 3").named("long")
    named = long.select("topic AS name", "at").named("named")
    same = named.map_batches(topics.same_table).named("same")
    once = named.distinct("name").named("once")
    table = named.changes(key="name").named("table")
    recent = table.last("5m").named("recent")
    counts = recent.key_by("name").agg(n=ms.count()).named("counts")
    totals = once.key_by().agg(emit="delta", n=ms.count()).named("totals")
    best = counts.key_by().top(3, by=["n", "name ASC"], rank="nth").named("best")
    known = once.join(table, on="name", how="left", suffix="_there").named("known")
    near = once.join(named, on="name", between=("-5m", "10m")).named("near")
    then = once.join(named, on="name", how="asof", within="1h").named("then")
    common = near.intersect(then, all=True).named("common")
    different = near.difference(common).named("different")
    different.select("*").named("read").view("differences")
    once.sink(ms.Console(), name="single")
    known.union(different, best, totals).named("rows.union").sink(ms.Console(), name="rows")
    same.sink(ms.Jsonl("out"), name="files")
    long.union(loud).named("all.union").sink(ms.Call(topics.hand_over), name="all")
    assert_same(found, flow)


def test_windows_and_aggregates(load: Any, topics: Any) -> None:
    found = load(
        SOURCE
        + """
        [step.early]
        from = "tweets"
        key_by = ["text", "at"]
        nulls = "keep"
        window = "sliding(10m, slide=1m)"
        emit = "early"
        every = "10s"
        every_rows = 100
        every_event = "1m"
        agg.n = "count"
        agg.best = "top_k(text, k=3)"
        agg.p = 'quantile("a b", [0.5, 0.9], approx=true)'

        [step.whole.agg]
        own = "topics:Spread(text)"
        plain = "topics:Spread"
        [step.whole]
        from = "tweets"
        key_by = []

        [step.longest]
        from = "tweets"
        key_by = "text"
        window = "session(5m)"
        reduce = "topics:longest"

        [step.words]
        from = "tweets"
        map_reduce = "topics:Words"
        window = "tumbling(1m)"
        sorted = true

        [step.keyed_words]
        from = "tweets"
        key_by = "text"
        map_reduce = "topics:Words()"

        [step.too_late]
        from = "early.late"
        where = "text IS NOT NULL"

        [sink.show]
        from = ["too_late", "early.late"]
        kind = "console"
        limit = 5
        """
    ).flow
    flow = ms.Flow("app")
    tweets = flow.source(ms.Files("tweets.jsonl", time="at"), name="tweets")
    early = (
        tweets.key_by("text", "at", nulls="keep")
        .window(
            ms.sliding("10m", "1m"), emit="early", every="10s", every_rows=100, every_event="1m"
        )
        .agg(
            n=ms.count(),
            best=ms.top_k("text", k=3),
            p=ms.quantile("a b", [0.5, 0.9], approx=True),
        )
        .named("early")
    )
    tweets.key_by().agg(own=topics.Spread("text"), plain=topics.Spread()).named("whole")
    tweets.key_by("text").window(ms.session("5m")).reduce(topics.longest).named("longest")
    tweets.map_reduce(topics.Words(), ms.tumbling("1m"), sorted=True).named("words")
    tweets.key_by("text").map_reduce(topics.Words()).named("keyed_words")
    late = early.late()
    too_late = late.where("text IS NOT NULL").named("too_late")
    too_late.union(late).named("show.union").sink(ms.Console(5), name="show")
    assert_same(found, flow)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("tumbling(1m)", ms.tumbling("1m")),
        ("sliding(10m, 1m)", ms.sliding("10m", "1m")),
        ("hopping(1m, 90s)", ms.hopping("1m", "90s")),
        ("landmark(slide=1h)", ms.landmark("1h")),
        ("session(1.5h)", ms.session("1.5h")),
        ("count_window(100, 10)", ms.count_window(100, 10)),
        ("bytes_window(1000)", ms.bytes_window(1000)),
    ],
)
def test_every_window(load: Any, text: str, window: Any) -> None:
    found = load(
        SOURCE
        + f"""
        [step.n]
        from = "tweets"
        key_by = "text"
        window = "{text}"
        agg.n = "count()"
        """
    )
    assert found.flow.nodes[-1].window == window


def test_updaters_published_streams_and_a_cycle(load: Any, topics: Any) -> None:
    found = load(
        SOURCE
        + """
        [stream.hot]
        [stream.again]

        [step.counts]
        from = ["tweets", "again"]
        key_by = { tweets = ["text", "at"], again = "key" }
        nulls = { tweets = "keep" }
        update = "topics:count"
        on_timer = "topics:tick"
        ttl = "1h"
        order = "arrival"
        late = "divert"
        clock = "wall"
        codec = "topics:Numbers"
        publishes = ["hot", "again"]
        max_slate = 1000

        [step.merged]
        from = "hot"
        key_by = "key"
        update = "topics:Count(by=2)"
        merge = "topics:add"

        [step.kept]
        from = "hot"
        key_by = "key"
        update = "topics:by_two"
        publishes = "again"

        [step.by_class]
        from = ["hot", "tweets"]
        key_by = []
        update = "topics:Count"

        [sink.late]
        from = "counts.late"
        kind = "parquet"
        path = "late"
        """
    ).flow
    flow = ms.Flow("app")
    tweets = flow.source(ms.Files("tweets.jsonl", time="at"), name="tweets")
    hot, again = flow.stream("hot"), flow.stream("again")
    counts = (
        tweets.key_by("text", "at", nulls="keep")
        .union(again.key_by("key"))
        .update(
            topics.count,
            name="counts",
            on_timer=topics.tick,
            ttl="1h",
            order="arrival",
            late="divert",
            clock="wall",
            codec=topics.Numbers(),
            publishes=["hot", "again"],
            max_slate=1000,
        )
    )
    hot.key_by("key").update(topics.Count(by=2), name="merged", merge=topics.add)
    hot.key_by("key").update(topics.by_two, name="kept", publishes="again")
    hot.key_by().union(tweets.key_by()).update(topics.Count, name="by_class")
    counts.late().sink(ms.Parquet("late"), name="late")
    assert_same(found, flow)


def test_steps_may_stand_in_any_order(load: Any) -> None:
    """A long chain, written backwards."""
    steps = [
        f'[step.s{n}]\nfrom = "{"tweets" if n == 0 else f"s{n - 1}"}"\nwhere = "true"\n'
        for n in range(400)
    ]
    found = load(SOURCE + "\n".join(reversed(steps)))
    assert [node.name for node in found.flow.nodes] == ["tweets", *(f"s{n}" for n in range(400))]


def test_how_it_is_run(load: Any) -> None:
    found = load(
        SOURCE
        + """
        [run]
        checkpoint = "ck/topics"
        master = "local[2]"
        batch_seconds = 1
        dead_letter_limit = 0.5
        debug = true
        spark = { "spark.executor.memory" = "2g" }
        on_progress = "topics:watch"
        """
    )
    assert found.checkpoint == Path("ck/topics")
    watch = found.settings.pop("on_progress")
    assert watch.__name__ == "watch"
    assert found.settings == {
        "master": "local[2]",
        "batch_seconds": 1,
        "dead_letter_limit": 0.5,
        "debug": True,
        "spark": {"spark.executor.memory": "2g"},
    }


def test_functions_of_several_files(load: Any, place: Path) -> None:
    (place / "lib").mkdir()
    (place / "lib" / "topics.py").write_text("import beside\n\ndef down(row):\n    return row\n")
    (place / "lib" / "beside.py").write_text("")
    found = load(
        """
        name = "two"
        [functions]
        topics = "topics.py"
        lib = "lib/topics.py"
        [source.tweets]
        kind = "files"
        path = "tweets.jsonl"
        [step.a]
        from = "tweets"
        map = "topics:shout"
        [step.b]
        from = "a"
        map = "lib:down"
        """
    )
    assert found.flow.nodes[-1].fn.__name__ == "down"


def test_an_all_says_what_a_file_offers(load: Any, place: Path) -> None:
    (place / "few.py").write_text(
        "from topics import upper\n__all__ = ['upper']\ndef other(row):\n    return row\n"
    )
    text = (
        SOURCE.replace('["topics.py"]', '["few.py"]') + '[step.a]\nfrom = "tweets"\nmap = "few:{}"'
    )
    assert load(text.format("upper")).flow.nodes[-1].fn.__name__ == "upper"
    with pytest.raises(ms.ConfigError, match=r"few.py defines no 'other'; it has: upper"):
        load(text.format("other"))


def test_one_function_loads_both_kinds_of_files(place: Path) -> None:
    Path("app.py").write_text("import millstream as ms\nflow = ms.Flow('x')\n")
    Path("app.toml").write_text('name = "y"\n')
    assert load_application(Path("app.py")).flow.name == "x"
    assert load_application(Path("app.toml")).flow.name == "y"
    assert load_application(Path("app.toml"), "y").flow.name == "y"
    assert load_application(Path("app.py")).settings == {}
    with pytest.raises(ms.ConfigError, match=r"app.toml has no flow 'z'; it has: 'y'"):
        load_application(Path("app.toml"), "z")


def test_the_file_may_be_somewhere_else(place: Path, tmp_path: Path) -> None:
    """Functions are beside the file, data is where the command is given: as with Python files."""
    (tmp_path / "conf").mkdir()
    (place / "topics.py").rename(tmp_path / "conf" / "topics.py")
    Path("conf/app.toml").write_text(
        SOURCE
        + textwrap.dedent(
            """
            [step.mentions]
            from = "tweets"
            flat_map = "topics:mentions"
            [step.counts]
            from = "mentions"
            key_by = "topic"
            agg.n = "count()"
            [sink.out]
            from = "counts"
            kind = "jsonl"
            path = "out"
            """
        )
    )
    run_in_process(load_application(Path("conf/app.toml")).flow, "ck")
    (written,) = Path("out").glob("part-*.jsonl")
    assert '"topic":"mill"' in written.read_text() and '"n":1' in written.read_text()
