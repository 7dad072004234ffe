"""Quantiles against tables (Student's t, chi-squared)."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.estimating.distributions import far_student, gamma, student


@pytest.mark.parametrize(
    ("freedom", "expected"), [(4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1e9, 1.96)]
)
def test_student(freedom: float, expected: float) -> None:
    assert student(0.975, np.array([freedom]))[0] == pytest.approx(expected, abs=4e-3)


@pytest.mark.parametrize(("shape", "expected"), [(1, 7.378), (2, 11.143), (5, 20.483), (20, 59.34)])
def test_gamma_is_half_of_chi_squared(shape: float, expected: float) -> None:
    assert 2 * gamma(0.975, np.array([shape]))[0] == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(("shape", "expected"), [(1, 0.0506), (2, 0.4844), (10, 9.591)])
def test_the_lower_tail_of_gamma_is_not_too_high(shape: float, expected: float) -> None:
    assert 2 * gamma(0.025, np.array([shape]))[0] <= expected * 1.001


@pytest.mark.parametrize(
    ("times", "freedom", "expected"),  # of the same tail
    [(1.96, 10, 2.228), (3.2905, 10, 4.587), (3.2905, 30, 3.646), (4.4172, 12, 7.2607)],
)
def test_student_far_out(times: float, freedom: float, expected: float) -> None:
    found = float(far_student(np.array([times]), np.array([freedom]))[0])
    assert expected * 0.999 <= found <= expected * 1.05
