"""A session of Spark over Connect: found, or opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException

from millstream.errors import ConfigError
from millstream.settings import Settings


def is_remote(settings: Settings) -> bool:
    """Whether Spark is reached over Connect."""
    return settings.master.startswith("sc://") or _active() is not None


def _active() -> Any:
    """A session over Connect that this process has, if it has one."""
    if "pyspark.sql.connect.session" not in sys.modules:
        return None
    from pyspark.sql.connect.session import SparkSession

    return SparkSession._get_default_session()


def open_remote(flow: str, settings: Settings) -> tuple[Any, bool]:
    """The session to run in, and whether it was opened here."""
    active = _active()
    if active is not None:
        return active, False
    try:
        from pyspark.sql.connect.session import SparkSession
    except (ImportError, PySparkException) as error:
        raise ConfigError(
            "Spark Connect needs packages more: pip install 'millstream[connect]'"
        ) from error
    os.environ.pop("SPARK_REMOTE", None)
    try:
        session = SparkSession.builder.remote(settings.master).appName(flow).getOrCreate()
        _configure(session, settings.spark)
        session.range(1).count()
    except Exception as error:
        line = (str(error).strip().splitlines() or ["?"])[0][:300]
        raise ConfigError(
            f"Spark Connect at {settings.master} does not answer ({line}); start its server there"
        ) from error
    return session, True


# What spark-submit would send along, and what it is to `addArtifacts`.
_SENT = {"spark.submit.pyFiles": "pyfile", "spark.archives": "archive", "spark.files": "file"}


def _configure(session: Any, properties: Mapping[str, str]) -> None:
    """Set properties of the session, and send what others name."""
    for name, value in properties.items():
        if name in _SENT:
            session.addArtifacts(*value.split(","), **{_SENT[name]: True})
        else:
            session.conf.set(name, value)
