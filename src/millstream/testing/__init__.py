"""The test kit: a driver with a clock of its own, a plain-Python oracle, and laws."""

from millstream.testing.driver import Driver, run_in_process

__all__ = ["Driver", "run_in_process"]
