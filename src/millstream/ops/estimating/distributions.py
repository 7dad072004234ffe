"""Quantiles of the distributions that intervals are made of, for whole columns at once."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from millstream.ops.chunks import Floats


def normal(share: float) -> float:
    """The value below which this share of a standard normal distribution lies."""
    return NormalDist().inv_cdf(share)


def student(share: float, freedom: Floats) -> Floats:
    """The same of Student's t with so many degrees of freedom, from 4 on.

    The expansion of Fisher and Cornish (Abramowitz and Stegun 26.7.5), right to about 1e-3 there.
    """
    z, v = normal(share), np.maximum(freedom, 4.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    powers = np.arange(1, len(terms) + 1)[:, None]
    found: Floats = z + (np.array(terms)[:, None] / v**powers).sum(axis=0)
    return found


def far_student(times: Floats, freedom: Floats) -> Floats:
    """The value of Student's t as far out as so many deviations of a normal distribution are.

    By Wallace's transformation (1959): within 5 % above, also far out, where series fail.
    """
    normed = times * (8 * freedom + 3) / (8 * freedom + 1)
    found: Floats = np.sqrt(freedom * np.expm1(normed**2 / freedom))
    return found


def gamma(share: float, shape: Floats) -> Floats:
    """The same of a gamma distribution with scale one (Wilson and Hilferty 1931).

    For shapes from 1 on: within one per cent above, and below the true one in the lower tail.
    """
    cube = 1 - 1 / (9 * shape) + normal(share) / (3 * np.sqrt(shape))
    found: Floats = shape * np.maximum(cube, 0.0) ** 3
    return found
