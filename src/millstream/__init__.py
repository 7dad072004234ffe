"""Continuous MapReduce in Python on Apache Spark.

import millstream as ms

flow = ms.Flow("trades")
trades = flow.source(ms.Files("in/", format="parquet", time="ts", lateness="5s"))
(trades.where("price > 0")
       .key_by("symbol")
       .window(ms.sliding("10m", "1m"))
       .agg(avg=ms.mean("price"), n=ms.count())
       .sink(ms.Parquet("out/")))
flow.run(checkpoint="ck/")
"""

import sys
from typing import TYPE_CHECKING, Any

from millstream.api.aggregates import (
    Aggregate,
    collect,
    count,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    quantile,
    std,
    sum,
    top_k,
    var,
)
from millstream.api.closing import ClosingPolicy, OpenWindow, Participant, evict, watermark
from millstream.api.early import Snapshot, rel_error, snapshot, time_limit
from millstream.api.elsewhere import NAMES, absent
from millstream.api.flow import Flow
from millstream.api.frames import plainly
from millstream.api.job import job
from millstream.api.keyed import KeyedStream
from millstream.api.mapreduce import MapReduce
from millstream.api.overload import Overload, divert, drop, throttle
from millstream.api.programs import JobContext
from millstream.api.several import run_all, start_all
from millstream.api.sinks import Call, Console, Csv, Jsonl, Memory, Parquet, Redis, Text
from millstream.api.sources import (
    Collector,
    Delta,
    Files,
    Frame,
    FrameStream,
    Generator,
    HostStats,
    Http,
    Kafka,
    Rate,
    Socket,
    Stdin,
    record_time,
)
from millstream.api.stream import Stream
from millstream.api.tables import Iceberg, Postgres
from millstream.api.updater import KeyedStreams
from millstream.api.windowed import WindowedStream
from millstream.api.windows import (
    bytes_window,
    count_window,
    hopping,
    landmark,
    session,
    sliding,
    tumbling,
)
from millstream.errors import CheckpointError, ConfigError, MillstreamError, RunError, SqlError
from millstream.ops.updates.contexts import Context, Event
from millstream.ops.updates.processing import ProcessContext
from millstream.ops.windows.jobs import Window
from millstream.scheduling import MEM, ODF, Hybrid, Queue, Request
from millstream.serve.answers import newest_snapshot
from millstream.serve.bulk import Slates, slates
from millstream.serve.reading import View, query, views
from millstream.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Flow",
    "Stream",
    "KeyedStream",
    "KeyedStreams",
    "WindowedStream",
    "run_all",
    "start_all",
    "Settings",
    "Files",
    "Frame",
    "FrameStream",
    "Socket",
    "Stdin",
    "Http",
    "Generator",
    "Rate",
    "HostStats",
    "Collector",
    "Kafka",
    "record_time",
    "Parquet",
    "Csv",
    "Jsonl",
    "Text",
    "Console",
    "Call",
    "Memory",
    "Delta",
    "Iceberg",
    "Postgres",
    "Redis",
    "tumbling",
    "sliding",
    "hopping",
    "landmark",
    "session",
    "count_window",
    "bytes_window",
    "Window",
    "watermark",
    "evict",
    "ClosingPolicy",
    "OpenWindow",
    "Participant",
    "ODF",
    "MEM",
    "Hybrid",
    "Queue",
    "Request",
    "throttle",
    "drop",
    "divert",
    "Overload",
    "Aggregate",
    "sum",
    "mean",
    "var",
    "std",
    "count",
    "min",
    "max",
    "first",
    "last",
    "collect",
    "top_k",
    "distinct",
    "quantile",
    "Snapshot",
    "newest_snapshot",
    "rel_error",
    "snapshot",
    "time_limit",
    "MapReduce",
    "job",
    "JobContext",
    "Event",
    "Context",
    "ProcessContext",
    "slates",
    "Slates",
    "views",
    "View",
    "query",
    "MillstreamError",
    "ConfigError",
    "RunError",
    "CheckpointError",
    "SqlError",
]

for _policy in (ODF, MEM, Hybrid):  # which lie below the layer that words such errors
    plainly(_policy)

if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

    def __getattr__(name: str) -> Any:
        raise absent("ms", name, NAMES, sys.modules[__name__])
