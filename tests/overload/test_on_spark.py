"""The same campaign on Spark: each policy on files, sockets and generators, every record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.overload.on_spark import check_on_spark
from tests.overload.producing import POLICIES, files, generators, sockets


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [files, sockets, generators])
def test_five_times_what_can_be_processed_on_spark(
    spark: Any, tmp_path: Path, kind: Any, policy: str
) -> None:
    check_on_spark(*kind(tmp_path, POLICIES[policy]), tmp_path)
