"""The picture of the demonstration: what the busiest symbols did, and how busy the market was."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.demo.trades import CLOSE, DAY, OPEN

matplotlib.use("Agg")

from matplotlib import dates as mdates
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

_SYMBOLS = 5
_DOTS = 1_500  # of the trades of a symbol
_COLOURS = ("#2563eb", "#d97706", "#059669", "#be185d", "#6d28d9")
_INK, _PALE, _PAPER = "#1f2937", "#9ca3af", "#fcfcfb"


def draw(out: Path, caption: str) -> Path:
    """Draw the results under `out` into `demo.png` there."""
    averages = pq.read_table(out / "averages").sort_by("window_end")
    market = pq.read_table(out / "market").sort_by("window_start")
    trades = pq.read_table(out / "trades")
    settings: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 10.5,
        "text.color": _INK,
        "axes.edgecolor": _PALE,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "timezone": "UTC",
    }
    with plt.rc_context(settings):
        figure, (above, below) = plt.subplots(
            2,
            1,
            figsize=(12.8, 8.0),
            sharex=True,
            facecolor=_PAPER,
            gridspec_kw={"height_ratios": (3.4, 1), "hspace": 0.07},
        )
        figure.subplots_adjust(left=0.07, right=0.895, top=0.86, bottom=0.115)
        _draw_averages(above, averages, trades)
        _draw_volume(below, market)
        _write_titles(figure, caption)
        path = out / "demo.png"
        figure.savefig(path, dpi=130, facecolor=_PAPER)
        plt.close(figure)
    return path


def _draw_averages(axes: Any, averages: pa.Table, trades: pa.Table) -> None:
    labels = []
    for symbol, colour in zip(_busiest(averages), _COLOURS, strict=False):
        curve = averages.filter(pc.equal(averages.column("symbol"), symbol))
        value = curve.column("average").to_numpy()
        opening = float(value[0])
        dots = _sample(trades.filter(pc.equal(trades.column("symbol"), symbol)))
        axes.plot(
            _times(dots.column("ts")),
            100 * (dots.column("price").to_numpy() / opening - 1),
            linestyle="none",
            marker=".",
            markersize=2.6,
            markeredgewidth=0,
            alpha=0.30,
            color=colour,
            zorder=2,
        )
        change = 100 * (value / opening - 1)
        # After the close windows run out of trades; the curve ends with the last full one.
        times = _times(curve.column("window_end"))
        inside = times <= np.datetime64(_clock(CLOSE).replace(tzinfo=None))
        axes.plot(times[inside], change[inside], color=_PAPER, linewidth=4.2, zorder=3)
        axes.plot(times[inside], change[inside], color=colour, linewidth=2.0, zorder=4)
        labels.append((float(change[inside][-1]), symbol, colour))
    axes.axhline(0, color=_PALE, linewidth=0.8, zorder=1)
    _label_ends(axes, labels)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _percent(y, 0) if y else "0%"))
    axes.set_ylabel("change since the open")
    _tidy(axes)
    axes.tick_params(bottom=False)


def _label_ends(axes: Any, labels: list[tuple[float, str, str]]) -> None:
    """Names at the ends of the curves, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    apart = (high - low) * 0.045
    at = -np.inf
    for change, symbol, colour in sorted(labels):
        at = max(change, at + apart)
        axes.annotate(
            f"{symbol} {_percent(change, 1)}",
            (1.008, at),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )


def _draw_volume(axes: Any, market: pa.Table) -> None:
    times = _times(market.column("window_start"))
    volume = market.column("volume").to_numpy() / 1000
    axes.bar(
        times, volume, width=np.timedelta64(60, "s"), align="edge", color="#64748b", linewidth=0
    )
    axes.set_ylabel("shares a minute")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}k" if y else "0"))
    axes.xaxis.set_major_locator(mdates.HourLocator())  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    axes.set_xlim(_clock(OPEN), _clock(CLOSE))
    axes.set_ylim(0, float(np.quantile(volume, 0.998)) * 1.15)
    _tidy(axes)


def _write_titles(figure: Any, caption: str) -> None:
    figure.text(
        0.07,
        0.945,
        "A day of trades in moving averages",
        fontsize=19,
        fontweight="bold",
        va="center",
    )
    figure.text(
        0.07,
        0.898,
        f"The {_SYMBOLS} busiest of 300 invented symbols: mean price over 5 minutes, every "
        "15 seconds (curves), and single trades (dots). Below: the whole market.",
        fontsize=10.5,
        color="#4b5563",
        va="center",
    )
    figure.text(0.07, 0.04, caption, fontsize=9, color="#6b7280", va="center")
    figure.text(
        0.895, 0.04, "millstream demo", fontsize=9, color="#6b7280", va="center", ha="right"
    )


def _percent(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}%".replace("-", "\N{MINUS SIGN}")


def _tidy(axes: Any) -> None:
    axes.set_facecolor(_PAPER)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


def _busiest(averages: pa.Table) -> list[str]:
    totals = averages.group_by("symbol").aggregate([("volume", "sum")])
    order = [("volume_sum", "descending"), ("symbol", "ascending")]
    names: list[str] = totals.sort_by(order).column("symbol").slice(0, _SYMBOLS).to_pylist()
    return names


def _sample(trades: pa.Table) -> pa.Table:
    step = max(1, len(trades) // _DOTS)
    return trades.take(pa.array(np.arange(0, len(trades), step)))


def _times(column: pa.ChunkedArray) -> Any:
    return column.cast(pa.timestamp("us")).to_numpy()


def _clock(seconds: float) -> datetime:
    return datetime.fromtimestamp(DAY.timestamp() + seconds, UTC)
