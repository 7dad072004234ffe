"""Texts like "mean(price)": read, never evaluated."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import ConfigError
from millstream.api.config.calls import Call, parse_call

GOOD: dict[str, Call] = {
    "count": Call("count"),
    "count()": Call("count", called=True),
    " mean( price ) ": Call("mean", arguments=("price",), called=True),
    "mean(order.price)": Call("mean", arguments=("order.price",), called=True),
    'mean("unit price")': Call("mean", arguments=("unit price",), called=True),
    "sliding(10m, 1m)": Call("sliding", arguments=("10m", "1m"), called=True),
    "tumbling(1.5s)": Call("tumbling", arguments=("1.5s",), called=True),
    "count_window(100, slide=10)": Call("count_window", None, (100,), {"slide": 10}, True),
    "quantile(price, [0.5, 1e-2], approx=true)": Call(
        "quantile", None, ("price", [0.5, 0.01]), {"approx": True}, True
    ),
    "topics:mentions": Call("mentions", "topics"),
    "topics:Hot(-3, name='a, b)')": Call("Hot", "topics", (-3,), {"name": "a, b)"}, True),
    "größe(préis)": Call("größe", arguments=("préis",), called=True),
}
BAD = {
    "": "expected a name, got the end",
    "mean(price": "expected a comma or ), got the end",
    "mean(price))": "expected the end, got ')'",
    "mean(,)": "expected a value, got ','",
    "mean(a b)": "expected a comma or ), got 'b'",
    "mean(k=1, price)": "expected a name= like those before it, got 'price'",
    "mean(k=1, k=2)": "k= is given twice",
    "topics:": "expected a name after the colon, got the end",
    "a:b:c": "expected the end, got ':'",
    "mean(f(x))": "expected a comma or ), got '('",
    "mean({x})": "'{' is not expected here",
    "__import__('os').system('x')": "is not expected here",
    "mean(price) + 1": "'+' is not expected here",
    "mean([1, 2)": "expected a comma or ], got ')'",
    "mean('a)": '"\'" is not expected here',
    "lambda: 0": "expected a name after the colon, got '0'",
    "7": "expected a name, got '7'",
}


@pytest.mark.parametrize("text", GOOD)
def test_what_is_understood(text: str) -> None:
    assert parse_call(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_call(text)
    assert BAD[text] in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_call(text), Call)


PLAIN = st.one_of(
    st.integers(-1000, 1000),
    st.floats(0, 100).filter(lambda x: "e" not in repr(x)),
    st.booleans(),
    st.text(st.characters(exclude_characters='"')),
)


def written(value: Any) -> str:
    """A value as a user writes it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(written, value))}]"
    return repr(value)


@given(
    st.lists(PLAIN | st.lists(PLAIN, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["a", "by", "k_2"]), PLAIN),
)
def test_what_is_written_is_read(arguments: list[Any], options: dict[str, Any]) -> None:
    parts = [written(one) for one in arguments]
    parts += [f"{name}={written(one)}" for name, one in options.items()]
    call = parse_call(f"topics:Hot({', '.join(parts)})")
    assert call == Call("Hot", "topics", tuple(arguments), options, True)


def test_arguments_that_do_not_fit_say_what_does() -> None:
    def mean(column: str, digits: int = 2) -> str:
        return f"{column}, {digits}"

    assert parse_call("mean(price, digits=3)").apply(mean) == "price, 3"
    with pytest.raises(ConfigError, match=r"mean\(column, digits\): .*'by'"):
        parse_call("mean(price, by=3)").apply(mean)
    with pytest.raises(ConfigError, match=r"missing a required argument: 'column'"):
        parse_call("mean()").apply(mean)
