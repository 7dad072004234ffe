"""How much a process moved from and to checkpoints, counted where it happens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Bytes of checkpoints: read from storage, had from memory instead, and written."""

    read: int = 0
    warm: int = 0
    written: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.warm + other.warm, self.written + other.written)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.read - other.read, self.warm - other.warm, self.written - other.written)


moved = Traffic()  # by this process since it began


def moved_so_far() -> Traffic:
    """What this process has moved until now."""
    return Traffic(moved.read, moved.warm, moved.written)
