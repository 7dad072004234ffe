"""Names people know from elsewhere: the error says what they are called here."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.api.elsewhere import FLOWS, NAMES, OTHERWISE, STREAMS
from millstream.errors import ConfigError


def stream() -> Any:
    return ms.Flow("known").source(ms.Rate(1))


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_methods_of_streams(name: str) -> None:
    here = STREAMS[name].partition("(")[0]
    assert hasattr(ms.Stream, here)
    with pytest.raises(ConfigError, match=f"{name}: this is called .{here}"):
        getattr(stream(), name)
    assert not hasattr(stream(), name)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names_of_the_module(name: str) -> None:
    here = NAMES[name].partition("(")[0]
    assert here in ms.__all__
    with pytest.raises(ConfigError, match=f"ms.{name}: this is called ms.{here}"):
        getattr(ms, name)


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_methods_of_flows(name: str) -> None:
    here = FLOWS[name].partition("(")[0]
    assert hasattr(ms.Flow, here)
    with pytest.raises(ConfigError, match=f"{name}: this is called .{here}"):
        getattr(ms.Flow("known"), name)


@pytest.mark.parametrize("name", sorted(OTHERWISE))
def test_what_is_meant_another_way(name: str) -> None:
    with pytest.raises(ConfigError, match=f"stream.{name}: there is nothing of that name here; "):
        getattr(stream(), name)


def test_other_names_are_not_there() -> None:
    for one in (ms, stream(), ms.Flow("known")):
        with pytest.raises(AttributeError, match=r"nonsense: there is (no such method|nothing)"):
            one.nonsense  # noqa: B018
        with pytest.raises(AttributeError, match="has no attribute '_hidden'"):
            one._hidden  # noqa: B018
    with pytest.raises(ImportError):
        from millstream import nonsense  # type: ignore[attr-defined]  # noqa: F401


def test_aggregates_need_a_name_and_a_key() -> None:
    keyed = stream().key_by("value")
    for one in (keyed, keyed.window(ms.tumbling("1m"))):
        with pytest.raises(ConfigError, match=r"agg\(n=ms.count\(...\)\)"):
            one.agg(ms.count())
    with pytest.raises(ConfigError, match=r"count is an aggregate.*agg\(n=ms.count"):
        stream().select("count(*)")
