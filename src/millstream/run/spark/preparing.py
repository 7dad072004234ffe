"""`millstream prepare`: start Spark once and keep an archive of the classes it loaded."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark import SparkContext

from millstream.errors import ConfigError
from millstream.run.spark.archive import NAME, places
from millstream.run.spark.session import close_session, end_java, has_session, open_session
from millstream.settings import Settings

_SECONDS = 300.0  # that Java has for writing the archive; it takes a few


def prepare(debug: bool = False) -> Path:
    """Make the archive for this Java and this installation's Spark; gives where it is."""
    if has_session():
        raise ConfigError("Spark runs in this process already; prepare its start in another one")
    place = _writable()
    unfinished = place / f"{NAME}.{os.getpid()}"
    recording = f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:disable -Xlog:all=error:stderr"
    settings = Settings(spark={"spark.driver.extraJavaOptions": recording}, debug=debug)
    try:
        context, _ = open_session("prepare", settings)
        try:
            _like_a_batch(context)
        finally:
            close_session(context)
            end_java(seconds=_SECONDS)
        if not unfinished.exists():
            raise ConfigError("Java ended without an archive of its classes; --debug shows why")
        unfinished.chmod(0o444)
        return unfinished.replace(place / NAME)
    finally:
        unfinished.unlink(missing_ok=True)


def _writable() -> Path:
    for place in places():
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK) and " " not in str(place):
            return place
    tried = " and ".join(str(place) for place in places())
    raise ConfigError(
        f"there is no place for the archive: {tried} cannot be written, or have a space in their "
        "name; set XDG_CACHE_HOME to a directory of yours"
    )


def _like_a_batch(context: SparkContext) -> None:
    """Load what a batch loads: a broadcast, and a job of two stages in Python workers."""
    known = context.broadcast(1)
    rows = context.parallelize(range(4), 2).map(lambda number: (number % 2, known.value))
    rows.partitionBy(2, lambda part: part).mapPartitions(list).collect()
