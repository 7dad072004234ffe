"""The flow of the demonstration: moving averages, and a second job on the results of a first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import millstream as ms

SIZE, SLIDE = timedelta(minutes=5), timedelta(seconds=15)


def make_flow(out: Path) -> tuple[ms.Flow, ms.Memory]:
    """The flow, and where its moving averages can be watched."""
    flow = ms.Flow("demo")
    trades = flow.source(ms.Files(out / "trades", format="parquet", time="ts", lateness="5s"))
    averages = (
        trades.key_by("symbol")
        .window(ms.sliding(SIZE, SLIDE))
        .agg(
            average=ms.mean("price"),
            low=ms.min("price"),
            high=ms.max("price"),
            volume=ms.sum("qty"),
            trades=ms.count(),
        )
        .named("averages")
    )
    live = ms.Memory()
    averages.sink(ms.Parquet(out / "averages")).sink(live)
    bars = (
        trades.key_by("symbol")
        .window(ms.tumbling("1m"))
        .agg(volume=ms.sum("qty"), trades=ms.count())
        .named("bars")
    )
    market = (
        bars.key_by()
        .window(ms.tumbling("1m"))
        .agg(volume=ms.sum("volume"), trades=ms.sum("trades"), symbols=ms.count())
        .named("market")
    )
    market.sink(ms.Parquet(out / "market"))
    return flow, live
