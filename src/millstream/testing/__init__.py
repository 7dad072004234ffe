"""The test kit: a driver with a clock of its own, a plain-Python oracle, and laws."""

from millstream.testing.driver import Driver, run_in_process
from millstream.testing.early import snapshots_in_process
from millstream.testing.laws import LawError, check_aggregate
from millstream.testing.reference import reference, reference_after

__all__ = [
    "Driver",
    "run_in_process",
    "snapshots_in_process",
    "reference",
    "reference_after",
    "check_aggregate",
    "LawError",
]
