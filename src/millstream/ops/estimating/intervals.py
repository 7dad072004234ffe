"""Intervals around estimates from blocks in random order, and what each of them promises.

A *pointwise* interval contains the true value with the given confidence when it is looked at once,
at a time that does not depend on what was seen. An *anytime* one contains it at all times together
with that confidence, however often one looks and whenever one stops.

Blocks are drawn without replacement, so what is left gets less and less: the finite-population
correction. After t of N blocks the mean varies as if t N / (N - t) blocks had been drawn with
replacement (Cochran, Sampling Techniques, 2.6). The same holds along the whole path: for the sum S
of t blocks of mean m, (S - t m) / (N - t) is a martingale, whose variance after t steps is that of
so many free draws (Serfling 1974; Waudby-Smith and Ramdas, Confidence sequences for sampling
without replacement, 2020).
"""

from __future__ import annotations

import numpy as np

from millstream.ops.chunks import Floats
from millstream.ops.estimating.distributions import far_student, student

POINTWISE, ANYTIME = "pointwise", "anytime"
PROMISES = {
    POINTWISE: "holds at each snapshot by itself, if when to stop does not depend on the answers",
    ANYTIME: "holds at all snapshots together, whenever one stops",
}
_PRIOR = 4.0  # draws: the fewer, the earlier along the path anytime intervals are narrowest
_MORE = 1.25  # times Student's quantile, where the mixture for unknown deviations says too little
_FEWEST = 12.0  # draws for which the mixture for unknown deviations is used


def radius(promise: str, risk: float, draws: float, freedom: Floats) -> Floats:
    """Half the width of an interval for the mean of a block, in standard deviations of blocks.

    risk: what may go wrong, on both sides together. draws: as many with replacement would say as
    much. freedom: how many blocks, less one, say how much blocks differ; few of them make an
    interval wider.
    """
    if promise == POINTWISE:
        wide: Floats = student(1 - risk / 2, freedom) / np.sqrt(draws)
        return wide
    if not np.isfinite(draws):
        return np.zeros(len(freedom))
    return sequence(risk, draws) * _unsure(risk, np.maximum(freedom + 1, _FEWEST))


def sequence(risk: float, draws: Floats | float) -> Floats:
    """The confidence sequence of Robbins for draws whose standard deviation is known to be one.

    It is a mixture over the true mean, which has the weight of a few draws.
    """
    n = np.asarray(draws, np.float64)
    prior = _PRIOR
    found: Floats = np.sqrt((n + prior) / n**2 * np.log((n + prior) / (prior * risk**2)))
    return found


def _unsure(risk: float, n: Floats) -> Floats:
    """How much wider it is if the standard deviation is that of the draws themselves.

    By the mixture for Student's t (Lai 1976; Wang and Ramdas, Anytime-valid t-tests, 2024), which
    holds for every number of draws, not only for many. For a small risk it needs many draws to say
    anything at all; then it is bounded by Student's quantile for the risk that is taken at this
    time, and some more.
    """
    prior, known = _PRIOR, sequence(risk, n)
    with np.errstate(over="ignore"):
        q = (risk**2 * prior / (n + prior)) ** (1 / n)
    square = (1 - q) * (n + prior) / np.maximum(q * (n + prior) - prior, 1e-9)
    mixture = np.sqrt(square * n / np.maximum(n - 1, 1)) / known
    times = known * np.sqrt(n)
    found: Floats = np.minimum(mixture, _MORE * far_student(times, n - 1) / times)
    return np.maximum(found, 1.0)


def stretched(times: Floats, skew: Floats, read: int) -> Floats:
    """How far an interval reaches to the side of a long tail, if it would be so wide without one.

    A few draws from a long tail mostly miss it, and then seem to differ less than they do. The
    cubic transformation of Hall (1992, On the removal of skewness by transformation) takes that out
    of a mean over its own standard deviation, in which `times` is counted. The tail of what was not
    read does not get shorter as less of it is left (Sugden, Smith and Jones 2000), so there is no
    correction for that here. No side is ever made shorter.
    """
    a = np.maximum(skew / (3 * np.sqrt(read)), 1e-9)
    with np.errstate(invalid="ignore"):
        found: Floats = (1 - np.cbrt(1 - 3 * a * (times + a / 2))) / a
    return np.where(np.isfinite(found), np.maximum(found, times), times)
