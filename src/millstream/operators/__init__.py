"""Keyed operators: windows, updaters, and what else works by key, each behind one protocol."""
