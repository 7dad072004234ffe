"""Runs that are killed or overtaken while their checkpoint is with Google or Azure."""

from __future__ import annotations

import pytest

from tests.stores.clouds import bucket, cloud  # noqa: F401
from tests.stores.test_runs import (  # noqa: F401  they run here with another bucket
    test_a_run_that_slept_past_the_retention_cannot_commit_a_batch_that_was_removed,
    test_a_zombie_is_refused_once_its_successor_has_committed,
    test_killed_at_named_points_nothing_is_lost_or_twice,
)

pytestmark = pytest.mark.long
