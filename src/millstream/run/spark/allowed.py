"""What the machine allows this process to have, where that is too little for Spark.

Java tells that in a different way each time: a class that is not found, a null, a thread.
"""

from __future__ import annotations

import resource

_FILES = 1_024  # on two cores 320 are too few and 400 enough; most are jars
_THREADS = 512  # on two cores 40 are too few and 120 enough; more with more cores


def too_little() -> str | None:
    """What to say of it; None if this process may have enough."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # Java takes as many as it may have
    if 0 <= files < _FILES:
        return (
            f"this process may open {files:,} files, and Spark needs several hundred: allow more "
            f"with `ulimit -n {4 * _FILES}`, or LimitNOFILE= of its service"
        )
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if 0 <= threads < _THREADS:
        return (
            f"this user may have {threads:,} processes and threads, and Spark needs a hundred and "
            f"more: allow them with `ulimit -u {8 * _THREADS}`, or LimitNPROC= of its service"
        )
    return None
