"""Benchmarks: one file per claim, each with its peer in the same run, answers compared first."""
