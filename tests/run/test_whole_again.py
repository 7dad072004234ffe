"""Totals over the whole input of one source, while another one goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import millstream as ms
from millstream.operators.stores import Store
from millstream.state.segments import Segment
from millstream.testing import Driver


def test_totals_that_were_given_are_not_read_again_while_another_source_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    before = Store._read

    def counted(self: Store, segments: Iterable[Segment]) -> Any:
        tables = before(self, segments)
        read.append(sum(map(len, tables)))
        return tables

    flow = ms.Flow("two")
    orders = flow.source(ms.Generator(list, schema="who string, x bigint"), name="orders")
    orders.key_by("who").agg(total=ms.sum("x")).sink(ms.Memory(), name="totals")
    clicks = flow.source(ms.Generator(list, schema="n bigint"), name="clicks")
    clicks.sink(ms.Memory(), name="seen")
    with Driver(flow) as driver:
        driver.push("orders", [{"who": f"w{n % 100}", "x": n} for n in range(1000)]).end("orders")
        driver.step()
        assert sum(row["total"] for row in driver.output("totals")) == sum(range(1000))
        monkeypatch.setattr(Store, "_read", counted)
        for n in range(5):
            driver.push("clicks", [{"n": n}]).step()
        assert sum(read) == 0
        driver.end()
        while driver.step():
            pass
        assert len(driver.output("totals")) == 100
        assert len(driver.output("seen")) == 5
