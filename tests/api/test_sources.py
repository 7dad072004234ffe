"""Options of sources and sinks: what cannot work is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda: ms.Files("in", time="ts", zone="Mars"), "Files(): zone= is 'Mars'"),
        (lambda: ms.Files("in", zone=5), "Files(zone=5): expected a text"),
        (lambda: ms.Files("in", time="ts", time_format="%Q"), "'%Q' is not known"),
        (lambda: ms.Files("in", time="ts", time_format=5), "Files(time_format=5): expected a text"),
        (lambda: ms.Files("in", time="ts", time_pattern="("), "no regular expression"),
        (lambda: ms.Files("in", time_pattern="x"), "say with time= which column"),
        (lambda: ms.Files("in", time_unit="hours"), "Files(time_unit='hours'): use one of"),
        (lambda: ms.Files("in", delimiter="ab"), "Files(): delimiter= is 'ab'"),
        (lambda: ms.Files("in", delimiter=5), "Files(delimiter=5): expected a text"),
        (lambda: ms.Files("in", encoding="klingon"), "Files(): encoding= is 'klingon'"),
        (lambda: ms.Files("in", encoding="utf-16"), "a line end is more than one byte"),
        (lambda: ms.Files("in", nulls=5), "Files(nulls=5): expected a list of texts"),
        (lambda: ms.Files("in", header="no"), "Files(header='no'): use True or False"),
        (lambda: ms.Files("in", follow=1), "Files(follow=1): use True or False"),
        (lambda: ms.Files("in", max_files_per_batch="5"), "expected a number from 1 on"),
        (lambda: ms.Socket("h", 1, format="csv", schema="a int", delimiter=""), "delimiter= is ''"),
        (lambda: ms.Kafka("h:1", "t", schema="a int", delimiter="ab"), "delimiter= is 'ab'"),
        (lambda: ms.Generator(tuple, zone="Mars"), "Generator(): zone= is 'Mars'"),
        (lambda: ms.Delta("table", tme="ts"), "Delta: no option tme; did you mean time?"),
        (lambda: ms.Frame(None, colour="red"), "Frame: no option colour; it has:"),
        (lambda: ms.Parquet("out", partition_by=5), "Parquet(partition_by=5): expected names"),
        (lambda: ms.Parquet("out", partition_by=("a", "a")), "a column is named twice"),
        (lambda: ms.Redis(key=None), "Redis(key=None): expected names of columns"),
        (lambda: ms.Delta("table", key=5), "Delta(key=5): expected names of columns"),
        (lambda: ms.Console(limit="all"), "Console(limit='all'): expected a number"),
        (lambda: ms.Flow("x").source(ms.Rate(1)).changes(5), "changes(key=5): expected names"),
        (lambda: ms.Flow("x").source(ms.Rate(1)).changes([]), "expected the columns that name"),
        (lambda: ms.FrameStream(None, avail_now=True), "did you mean available_now?"),
    ],
)
def test_an_option_that_cannot_work_is_refused_at_once(
    mistake: Callable[[], Any], told: str
) -> None:
    with pytest.raises(ms.ConfigError) as caught:
        mistake()
    assert told in str(caught.value)


def test_records_over_several_lines_are_for_csv(tmp_path: Any) -> None:
    (tmp_path / "a.json").write_text('{\n"x": 1\n}\n')
    source = ms.Files(tmp_path, multiline=True)
    with pytest.raises(ms.ConfigError, match="multiline=True is for csv, and this source is json"):
        ms.Flow("lines").source(source).head()
