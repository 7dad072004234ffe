"""Why a Spark job failed: in the message, whatever Spark's text is."""

from __future__ import annotations

import pytest

from millstream.run.spark.onspark import told

ABORTED = """An error occurred while calling z:org.apache.spark.PythonRDD.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 2061, in main
ValueError: no such thing
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(x.scala:1)
Driver stacktrace:
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 2061, in main
ValueError: no such thing
\t... 1 more
"""


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Exception(ABORTED), ["Job aborted due to stage failure", "ValueError: no such thing"]),
        (Exception("Job 3 cancelled because SparkContext was shut down"), ["was shut down"]),
        (caused(RuntimeError(), KeyError("offsets")), ["RuntimeError: KeyError: 'offsets'"]),
        (RuntimeError(), ["RuntimeError"]),
    ],
)
def test_a_failed_job_says_why(error: Exception, words: list[str]) -> None:
    message = str(told(error, []))
    assert message.startswith("a Spark job failed: ") and "not committed" in message
    assert all(word in message for word in words)
