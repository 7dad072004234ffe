"""Panes or values: which of both a family of windows keeps, by the rate at which values come.

C-MR computes panes if t*(w - s) > w/gcd(w, s): without panes a slide takes the t*w values of its
window, with them the t*s values that are new and the panes of the window. Here t, the values per
second and key, is measured while the flow runs. A family that keeps values keeps each as a row of
its own, with the state of just this value, so that rows of both kinds can lie side by side and a
switch converts nothing.

The inequality takes every pane of a window to have values. Where they come in bursts most panes
have none, and cost nothing here; then panes pay off as soon as those that have any have several.
"""

from __future__ import annotations

import math

import msgspec

from millstream.ops.windows.jobs import Family, WindowJob

PANES, VALUES = "panes", "values"
FULL = 1.5  # values per pane that has any, from which on panes pay off at any rate
_UP, _DOWN = 1.25, 0.8  # a switch has to be worth it by so much, so that it is not undone at once


class Rate(msgspec.Struct, frozen=True):
    """What a family keeps since which batch, and what was measured, as sums whose past fades."""

    kept: str = PANES
    since: int = 0
    values: float = 0.0
    panes: float = 0.0  # that got any values
    keys: float = 0.0  # keys in a window, times seconds
    seconds: float = 0.0  # of event time
    early: float = 0.0  # values that came since time moved last: part of what it moves by next

    def after(self, values: int, panes: int, keys: float, seconds: float, memory: float) -> Rate:
        """With what one more batch brought; `memory` is how many seconds count in the main."""
        came = self.early + values
        if not seconds:
            sums = {"panes": self.panes + panes, "keys": self.keys + keys}
            return msgspec.structs.replace(self, early=came, **sums)
        left = math.exp(-seconds / memory)
        return msgspec.structs.replace(
            self,
            early=0.0,
            values=self.values * left + came,
            panes=self.panes * left + panes,
            keys=self.keys * left + keys,
            seconds=self.seconds * left + seconds,
        )

    @property
    def per_key(self) -> float:
        """Values per second and key: the t of the inequality."""
        return self.values / self.keys if self.keys else 0.0

    @property
    def per_pane(self) -> float:
        """Values per pane that has any."""
        return self.values / self.panes if self.panes else 0.0


def has_choice(family: Family) -> bool:
    """Whether a family can keep values instead of panes: plain windows whose aggregates combine."""
    return family.kind == "time" and family.combines and not family.span.whole


def longest(family: Family) -> WindowJob:
    """The job whose windows show how many keys there are."""
    return max(family.users("panes"), key=lambda job: job.span.size)


def sides(family: Family, rate: float) -> tuple[float, float]:
    """Both sides of the inequality at a rate, panes paying off if the first is larger.

    For one window t*(w - s) and w/gcd. Windows that share panes make them once for all: then it is
    t*(sum of w/s - 1) and the sum of w/gcd/s, the same per second instead of per slide.
    """
    spans = [job.span for job in family.users("panes")]
    slide = spans[0].slide / 1e6 if len(spans) == 1 else 1.0
    overlap = sum(span.size / span.slide for span in spans)
    panes = sum(span.panes / (span.slide / 1e6) for span in spans)
    return rate * (overlap - 1) * slide, panes * slide


def flips_at(family: Family) -> float | None:
    """The rate at which both sides are equal; None if they never are."""
    gain, panes = sides(family, 1.0)
    return panes / gain if gain > 0 else None


def decide(family: Family, rate: Rate, batch: int) -> Rate:
    """What a family keeps from a batch on. One window's time must have been measured first."""
    if rate.seconds < longest(family).span.size / 1e6 or not rate.panes:
        return rate
    gain, panes = sides(family, rate.per_key)
    score = max(gain / panes, rate.per_pane / FULL)
    if rate.kept == PANES and score < _DOWN:
        return msgspec.structs.replace(rate, kept=VALUES, since=batch)
    if rate.kept == VALUES and score > _UP:
        return msgspec.structs.replace(rate, kept=PANES, since=batch)
    return rate
