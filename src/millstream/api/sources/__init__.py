"""Sources: where records come from. A source is a description; nothing is opened here."""

from __future__ import annotations

from millstream.api.sources.collector import Collector
from millstream.api.sources.delta import Delta
from millstream.api.sources.files import Files
from millstream.api.sources.frames import Frame, FrameStream
from millstream.api.sources.generated import Generator, HostStats, Rate
from millstream.api.sources.kafka import Kafka, record_time
from millstream.api.sources.received import Http, Lines, Socket, Stdin
from millstream.api.sources.timing import Timing

SourceSpec = (
    Files
    | Socket
    | Stdin
    | Http
    | Generator
    | Rate
    | HostStats
    | Collector
    | Delta
    | Frame
    | FrameStream
    | Kafka
)

__all__ = [
    "Collector",
    "Delta",
    "Files",
    "Frame",
    "FrameStream",
    "Generator",
    "HostStats",
    "Http",
    "Kafka",
    "Lines",
    "Rate",
    "Socket",
    "SourceSpec",
    "Stdin",
    "Timing",
    "record_time",
]
