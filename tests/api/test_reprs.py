"""What a person sees who types a name: flows, streams, windows, progress, and errors."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import millstream as ms
from millstream.api import frames
from millstream.run.reporting import Progress


def built() -> tuple[ms.Flow, ms.Stream]:
    flow = ms.Flow("trades")
    trades = flow.source(ms.Files("in/", time="ts", lateness="5s"), name="trades")
    rows = trades.where("price > 0").key_by("symbol").window(ms.sliding("10m", "1m"))
    means = rows.agg(avg=ms.mean("price"), n=ms.count())
    means.sink(ms.Parquet("out/"))
    return flow, means


def test_flows_and_streams_say_what_they_do() -> None:
    flow, means = built()
    assert repr(flow).splitlines() == [
        "Flow 'trades'",
        "  trades = Files(in/, time ts, lateness 5s)",
        "  where = where price > 0 <- trades",
        "  agg = by symbol, sliding(10m, 1m): avg=mean(price), n=count() <- where",
        "  parquet = sink Parquet(out/) <- agg",
    ]
    assert repr(means).startswith("Stream agg = by symbol, sliding(10m, 1m)")
    keyed = means.key_by("symbol")
    assert repr(keyed).endswith(", by symbol")
    assert repr(keyed.window(ms.session("5m"))).endswith(", by symbol, window session(5m)")
    assert repr(ms.tumbling("1d", zone="Europe/Paris")) == 'ms.tumbling(1d, zone="Europe/Paris")'
    assert repr(ms.quantile("x", 0.5)).startswith("ms.quantile(x")


def test_a_flow_is_a_picture_in_a_notebook() -> None:
    drawing = built()[0]._repr_svg_()
    assert drawing is not None and drawing.lstrip().startswith("<svg") and "trades" in drawing
    assert ms.Flow("nothing yet")._repr_svg_() is None


def test_progress_is_told_in_words() -> None:
    progress = Progress(
        batch=2,
        rows=1_500,
        windows=30,
        new_batches=3,
        new_rows=1_500,
        new_windows=30,
        dead=2,
        late=7,
        watermark=1_700_000_000_000_000,
        done=True,
        elapsed=2.04,
    )
    assert repr(progress).splitlines() == [
        "complete after 2.0 s: 3 batches, 1,500 records, 30 results",
        "  watermark 2023-11-14T22:13:20+00:00",
        "  2 dead, 7 late",
    ]


def test_explain_looks_at_files_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flow, _ = built()
    assert "columns" not in flow.explain()
    Path("in").mkdir()
    Path("in/a.csv").write_text("ts,symbol,price\n2026-01-01T00:00:00Z,A,1.5\n")
    told = flow.explain(look=True)
    assert "columns of trades: ts timestamp[us, tz=UTC], symbol string, price double" in told
    assert "columns of agg: symbol string, window_start timestamp[us, tz=UTC]" in told


def lines_of(error: BaseException) -> list[str]:
    """The files of the frames somebody would see."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_errors_show_one_frame_of_ours_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ms.Flow("x").source(ms.Rate(1))
    with pytest.raises(ms.ConfigError) as caught:
        stream.select("value +", "*").head()
    ours = [name for name in lines_of(caught.value) if name.startswith(frames._HERE)]
    assert len(ours) == 1 and ours[0].endswith("frames.py")
    assert lines_of(caught.value)[0] == __file__
    monkeypatch.setenv("MILLSTREAM_DEBUG", "1")
    with pytest.raises(ms.ConfigError) as caught:
        stream.select("value +", "*").head()
    assert sum(name.startswith(frames._HERE) for name in lines_of(caught.value)) > 1


def test_what_caused_an_error_keeps_the_frames_of_others() -> None:
    def users() -> None:
        raise KeyError("theirs")

    try:
        try:
            users()
        except KeyError as cause:
            raise ms.RunError("ours") from cause
    except ms.RunError as error:
        told = frames.without_frames(error)
    assert isinstance(told.__cause__, KeyError)
    assert lines_of(told.__cause__) == [__file__, __file__]
