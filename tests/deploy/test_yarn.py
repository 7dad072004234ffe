"""What is different on YARN, without a cluster."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.run.spark.session import _configuration, check_java_and_master


def test_workers_on_yarn_need_no_socket_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's directory has a longer name than a socket may have."""
    monkeypatch.setenv("PYTHONPATH", "")
    name = "spark.python.unix.domain.socket.enabled"
    assert _configuration("x", ms.Settings(master="yarn")).get(name) == "false"
    assert _configuration("x", ms.Settings(master="spark://host:7077")).get(name) == "true"


def test_where_yarn_is_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setattr("millstream.run.spark.session.check_java", lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(ConfigError, match="set HADOOP_CONF_DIR"):
        check_java_and_master(ms.Settings(master="yarn"))
