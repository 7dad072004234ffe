"""top_k, distinct and quantile: what they answer, exactly or within the error they state."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.ops.codec import decode, encode
from millstream.testing import Driver, check_aggregate

NAN, INF = float("nan"), float("inf")


def lifted(agg: Any, *columns: Any) -> Any:
    """The state of some values, as it is stored."""
    arrays = [c if isinstance(c, pa.Array) else pa.array(c) for c in columns]
    return agg.objects.bulk(arrays, np.zeros(len(arrays[0]), np.int64), 1)[0].as_py()


def answer(agg: Any, *columns: Any) -> Any:
    """The answer over some values."""
    if agg.lists is not None:
        return agg.lists(pa.array([columns[0]])).to_pylist()[0]
    return agg.objects.typed([decode(lifted(agg, *columns))]).to_pylist()[0]


# -- top_k ---------------------------------------------------------------------------------------


def pairs(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(one.values()) for one in found]


def test_the_most_frequent_come_first_and_ties_in_order() -> None:
    values = ["b", "a", "c", None, "b", "c", "d"]
    assert answer(ms.top_k("x", 3), values) == [
        {"value": "b", "count": 2},
        {"value": "c", "count": 2},
        {"value": "a", "count": 1},
    ]
    assert answer(ms.top_k("x", 3), [None]) == []


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([3, 3, 1], 3),
        ([1.5, NAN, 1.5], 1.5),
        ([True, False, True], True),
        ([b"x", b"x", b"y"], b"x"),
        ([datetime(2024, 1, 1, tzinfo=UTC)] * 2, datetime(2024, 1, 1, tzinfo=UTC)),
        ([datetime(2024, 1, 1)] * 2, datetime(2024, 1, 1)),
        ([date(2024, 1, 1)] * 2, date(2024, 1, 1)),
        ([[1, 2], [1, 2], [3]], [1, 2]),
    ],
)
def test_values_of_any_type_come_back_as_they_were(values: list[Any], best: Any) -> None:
    assert answer(ms.top_k("x", 1), values) == [{"value": best, "count": 2}]
    assert answer(ms.distinct("x"), values) == len({str(value) for value in values})


def test_nan_is_one_value_and_the_last_of_a_tie() -> None:
    found = answer(ms.top_k("x"), [NAN, 2.0, math.nan, 2.0])
    assert pairs(found)[0] == (2.0, 2)
    assert math.isnan(found[1]["value"])
    assert answer(ms.distinct("x"), [NAN, -NAN, 0.0, -0.0, None]) == 2


def test_totals_are_exact() -> None:
    tenth = [0.1] * 10 + [1e300, 1.0, -1e300]
    found = answer(ms.top_k("x", 2, by="y"), ["a"] * 10 + ["b"] * 3, tenth)
    assert pairs(found) == [("a", math.fsum([0.1] * 10)), ("b", 1.0)]
    assert pairs(answer(ms.top_k("x", 2, by="y"), ["a", "b", "a"], [5, -3, 2**40])) == [
        ("a", 2**40 + 5),
        ("b", -3),
    ]
    found = answer(ms.top_k("x", 9, by="y"), list("abcde"), [INF, -INF, NAN, None, 5e-324])
    assert [one["value"] for one in found] == ["c", "a", "e", "b"]
    assert found[2]["total"] == 5e-324


def test_infinities_can_be_taken_away_again() -> None:
    kernel = ms.top_k("x", 2, by="y").objects
    assert kernel is not None and kernel.inverse is not None and kernel.typed is not None
    agg = ms.top_k("x", 2, by="y")
    both = decode(lifted(agg, ["a"] * 3, [INF, 1.5, 1e-300]))
    left = kernel.inverse(both, decode(lifted(agg, ["a"] * 2, [INF, 1e-300])))
    assert pairs(kernel.typed([left]).to_pylist()[0]) == [("a", 1.5)]


def test_totals_beyond_64_bits_are_null_and_have_their_place() -> None:
    found = answer(ms.top_k("x", by="y"), ["b", "a", "a"], [1, 2**62, 2**62])
    assert pairs(found) == [("a", None), ("b", 1)]


def test_values_of_two_types_are_counted_together() -> None:
    kernel = ms.top_k("x").objects
    assert kernel is not None and kernel.typed is not None and kernel.inverse is not None
    one, other = (decode(lifted(ms.top_k("x"), values)) for values in ([1], ["a", "a", "1"]))
    both = kernel.plus(one, other)
    found = kernel.typed([both]).to_pylist()[0]
    assert found[0] == {"value": "a", "count": 2}
    assert {(row["value"], row["count"]) for row in found[1:]} == {(1, 1), ("1", 1)}
    left = kernel.inverse(both, decode(lifted(ms.top_k("x"), ["a", "1"])))
    assert sorted(map(str, kernel.typed([left]).to_pylist()[0])) == sorted(
        map(str, [{"value": 1, "count": 1}, {"value": "a", "count": 1}])
    )


# -- distinct ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 100, 5_000, 200_000])
def test_the_sketch_is_within_its_error(count: int) -> None:
    values = np.random.default_rng(count).permutation(count)
    found = answer(ms.distinct("x", approx=True), pa.array(values, pa.int64()))
    assert abs(found - count) <= 0.047 * count  # three standard errors


def test_most_sketches_are_within_one_standard_error_or_two() -> None:
    rng, off = np.random.default_rng(3), []
    for _ in range(60):
        values = pa.array(rng.integers(0, 2**60, 3_000))
        off.append(abs(answer(ms.distinct("x", approx=True), values) / 3_000 - 1))
    assert np.sqrt(np.mean(np.square(off))) < 0.016 * 1.3
    assert max(off) < 0.016 * 4


def test_an_estimate_depends_on_the_values_only() -> None:
    agg = ms.distinct("x", approx=True)
    kernel = agg.objects
    assert kernel is not None and kernel.typed is not None
    values = [f"value {number}" for number in range(4_000)]
    whole = answer(agg, values)
    random.Random(1).shuffle(values)
    state = kernel.zero()
    for low in range(0, 4_000, 700):
        state = kernel.combine(state, decode(lifted(agg, values[max(low - 50, 0) : low + 700])))
    assert kernel.typed([decode(encode(state))]).to_pylist() == [whole]


# -- quantile ------------------------------------------------------------------------------------

QS = [0.0, 0.001, 0.25, 1 / 3, 0.5, 0.9, 1.0]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1_001])
def test_exact_quantiles_are_those_of_numpy_and_duckdb(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size) * 1e3
    found = answer(ms.quantile("x", QS), values.tolist())
    assert found == pytest.approx(np.quantile(values, QS), rel=1e-12)
    with duckdb.connect() as duck:
        duck.register("numbers", pa.table({"x": values}))
        ((theirs,),) = duck.sql(f"SELECT quantile_cont(x, {QS}) FROM numbers").fetchall()
    assert found == pytest.approx(theirs, rel=1e-12)


def test_quantiles_of_odd_values() -> None:
    assert answer(ms.quantile("x", 0.5), [3, None, 1]) == 2.0
    assert answer(ms.quantile("x", 0.5), [True, False]) == 0.5
    assert answer(ms.quantile("x", 0.5), [1.0, NAN, 2.0]) == 2.0  # NaN is the largest
    assert math.isnan(answer(ms.quantile("x", 0.9), [1.0, NAN, 2.0]))
    assert answer(ms.quantile("x", 0.5), [INF, INF, -INF]) == INF
    for approx in (False, True):
        assert (
            answer(ms.quantile("x", 0.5, approx=approx), pa.array([None, None]).to_pylist()) is None
        )
        assert answer(ms.quantile("x", [0.5], approx=approx), [None]) is None


def test_lists_with_and_without_values_do_not_mix() -> None:
    lists = pa.array([[1.0, 3.0], [], [None], [5.0]], pa.list_(pa.float64()))
    exact: Any = ms.quantile("x", [0, 0.5]).lists
    assert exact(lists).to_pylist() == [[1.0, 2.0], None, None, [5.0, 5.0]]
    one: Any = ms.quantile("x", 0.5).lists
    assert one(lists).to_pylist() == [2.0, None, None, 5.0]


def test_the_quantile_sketch_is_within_its_rank_error() -> None:
    agg = ms.quantile("x", QS, approx=True)
    kernel = agg.objects
    assert kernel is not None and kernel.typed is not None
    values = np.random.default_rng(2).exponential(size=50_000)
    state = kernel.zero()
    for part in np.array_split(values, 40):
        state = kernel.combine(state, decode(lifted(agg, part)))
    found = kernel.typed([state]).to_pylist()[0]
    ranks = np.searchsorted(np.sort(values), found) / len(values)
    assert np.abs(ranks - QS).max() < 2 * 0.0133  # a bound for 99 of 100; twice it for a test
    assert (found[0], found[-1]) == (values.min(), values.max())


def test_small_sketches_are_exact() -> None:
    check_aggregate(ms.quantile("x", [0.1, 0.5], approx=True), examples=50)
    assert answer(ms.quantile("x", 0.5, approx=True), [3, 1, 2, NAN]) == 2.0


# -- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.top_k("x", 0), "top_k(k=)"),
        (lambda: ms.top_k("x", 2.5), "top_k(k=)"),
        (lambda: ms.top_k("x", True), "top_k(k=)"),
        (lambda: ms.top_k(""), "top_k() needs the name of a column"),
        (lambda: ms.top_k("x", by=3), "top_k(by=)() needs"),
        (lambda: ms.distinct(None), "distinct() needs the name of a column"),
        (lambda: ms.distinct("x", approx=0.01), "distinct(approx=)"),
        (lambda: ms.quantile("x", 1.5), "quantile(q=)"),
        (lambda: ms.quantile("x", "0.5"), "quantile(q=)"),
        (lambda: ms.quantile("x", []), "the list is empty"),
        (lambda: ms.quantile("x", [0.5, NAN]), "quantile(q=)"),
        (lambda: ms.quantile("x", 0.5, approx="yes"), "quantile(approx=)"),
    ],
)
def test_wrong_parameters_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ms.ConfigError) as error:
        make()
    assert message in str(error.value)


def test_columns_are_checked_before_anything_runs() -> None:
    def explain(**aggs: Any) -> str:
        flow = ms.Flow("checked")
        source = ms.Files("x", schema="ts timestamp, s string, v double", time="ts")
        flow.source(source).key_by("s").agg(**aggs).sink(ms.Memory())
        with Driver(flow):
            return flow.explain()

    assert "running tallies" in explain(n=ms.distinct("s"), top=ms.top_k("s", by="v"))
    with pytest.raises(ms.ConfigError, match="needs numbers, but 's' is string"):
        explain(q=ms.quantile("s", 0.5))
    with pytest.raises(ms.ConfigError, match="needs numbers, but 's' is string"):
        explain(q=ms.top_k("v", by="s"))
    with pytest.raises(ms.ConfigError, match="no column 'w'"):
        explain(q=ms.top_k("v", by="w"))


def test_states_are_shared() -> None:
    names = [
        agg.measure("x").state
        for agg in (ms.top_k("s", 3), ms.top_k("s", 5), ms.distinct("s"), ms.top_k("s", by="v"))
    ]
    assert names == ["tally(s)", "tally(s)", "tally(s)", "tally(s, by=v)"]


# -- in a flow -----------------------------------------------------------------------------------


def test_results_can_be_chained() -> None:
    flow = ms.Flow("chained")
    source = ms.Files("x", schema="ts timestamp, k string, s string, v double", time="ts")
    minutes = flow.source(source, name="in").key_by("k").window(ms.tumbling("1m"))
    each = minutes.agg(
        top=ms.top_k("s", 1),
        n=ms.distinct("s"),
        q=ms.quantile("v", 0.5),
        qs=ms.quantile("v", [0, 1], approx=True),
    )
    each.sink(ms.Memory(), name="minutes")
    hours = each.key_by().window(ms.tumbling("1h"))
    hours.agg(
        tops=ms.top_k("top", 2),
        ns=ms.top_k("k", 2, by="n"),
        most=ms.max("n"),
        q=ms.quantile("q", 1),
    ).sink(ms.Memory(), name="hours")
    rows = [
        {
            "ts": datetime(2024, 1, 1, 0, minute, tzinfo=UTC),
            "k": key,
            "s": text,
            "v": None if text == "z" else float(minute),
        }
        for minute in range(3)
        for key, texts in (("a", "xxy"), ("b", "z"))
        for text in texts
    ]
    with Driver(flow) as driver:
        driver.push("in", rows).step()
        driver.restart()
        driver.end()
        first = driver.output("minutes")[:2]
        assert {row["k"]: (row["n"], row["q"], row["qs"]) for row in first} == {
            "a": (2, 0.0, [0.0, 0.0]),
            "b": (1, None, None),
        }
        (hour,) = driver.output("hours")
    assert hour["tops"][0] == {"value": [{"value": "x", "count": 2}], "count": 3}
    assert hour["ns"] == [{"value": "a", "total": 6}, {"value": "b", "total": 3}]
    assert (hour["most"], hour["q"]) == (2, 2.0)
