"""What tests share."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Files without fixtures worth keeping: their tests may run in any process, after all others, so
# that no process is left with a long file at the end.
SPREAD = frozenset(
    {
        "tests/deployments/test_deployments.py",
        "tests/differential/test_driver_against_reference.py",
        "tests/laws/test_incremental.py",
        "tests/operators/test_grouped.py",
        "tests/operators/test_join.py",
        "tests/ops/test_ordering.py",
        "tests/plans/test_strategies.py",
        "tests/run/test_early_times.py",
        "tests/run/test_emission.py",
        "tests/run/test_logical_windows.py",
        "tests/run/test_sliding.py",
        "tests/run/test_window_kinds.py",
    }
)

# Files and folders whose tests wait most, for Spark, brokers, browsers and signals: they begin, and
# what only computes fills the gaps.
WAITING = (
    "tests/frames",
    "tests/chaos",
    "tests/kafka",
    "tests/cli",
    "tests/stores",
    "tests/demo",
    "tests/serve",
    "tests/run/test_follow.py",
    "tests/redis",
    "tests/tables",
)

# Every commit of every test waits for the disk some ten times. In memory nothing waits, and nothing
# that is checked depends on it: the calls are the same.
MEMORY = Path("/dev/shm")
ENOUGH = 2**32


def pytest_configure(config: pytest.Config) -> None:
    """Let temporary files lie in memory, here and in every process that is started."""
    gc.disable()  # until all is collected: none of it is garbage, and all of it would be looked at
    # No example has a time to keep: machines are busy. What has to pass before a change goes in
    # draws the same examples every time; campaigns, or `-m ""`, look for others.
    settings.register_profile(
        "busy",
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize="not long" in config.getoption("markexpr"),
    )
    settings.load_profile("busy")
    if hasattr(config, "workerinput") or "TMPDIR" in os.environ:
        return  # a process of xdist has it from the one that started it
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ENOUGH:
        return
    for left in MEMORY.glob("millstream-tests-*"):  # of runs that failed, or were killed
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    place = tempfile.mkdtemp("", f"millstream-tests-{os.getpid()}-", MEMORY)
    os.environ["TMPDIR"] = config.stash[_PLACE] = place
    tempfile.tempdir = None  # look again


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the collector need not look at them again and again."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Give the memory back, unless there is something to look at: then the next run does."""
    gc.unfreeze()  # libraries look at the end whether all of theirs is gone
    kept = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERNAL_ERROR)
    if (place := session.config.stash.get(_PLACE, None)) and exitstatus not in kept:
        shutil.rmtree(place, ignore_errors=True)


_PLACE = pytest.StashKey[str]()


def pytest_xdist_auto_num_workers() -> int:
    """More processes than cores: some tests or other always wait for a process or a socket."""
    return (os.cpu_count() or 1) + 3


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on a disk, where inodes are used again as in memory they are not."""
    with tempfile.TemporaryDirectory("", "tests-", "/var/tmp") as place:
        yield Path(place)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which tests must run in one process: those of a file, for `--dist loadgroup`.

    Those that share a Spark session run in one process too, or every process would start one.
    """
    order = []
    for item in items:
        file = item.path.relative_to(config.rootpath).as_posix()
        on_spark = "spark" in getattr(item, "fixturenames", ())
        spread = file in SPREAD and not on_spark
        order.append((spread, not on_spark, not file.startswith(WAITING)))
        if not spread:
            shared = "spark" if on_spark else file
            if file.startswith("tests/kafka/"):
                shared = "tests/kafka"  # one broker for all of them
            item.add_marker(pytest.mark.xdist_group(shared))
    items[:] = [item for _, item in sorted(zip(order, items, strict=True), key=lambda one: one[0])]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session with two cores, the same for all tests that ask for one."""
    from millstream.run.spark.session import open_session
    from millstream.settings import Settings

    session, ours = open_session("tests", Settings(master="local[2]"))
    yield session
    if ours:
        session.stop()
