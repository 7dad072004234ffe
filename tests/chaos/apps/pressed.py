"""The updaters under pressure: every start has another policy, room and budget.

python pressed.py DATA WORK: `CHAOS_PRESSED` seeds what is drawn; every batch in which the scheduler
held somebody back is a line of the file `held`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[3]))
from millstream.run.pressure import scheduler
from tests.chaos.apps import updaters
from tests.scheduling.pressing import BUDGETS, POLICIES, SECONDS, pressed


def main(data: Path, work: Path) -> None:
    """Run to the end, with what this start draws."""
    with (work / "starts").open("a+") as starts:
        starts.write("one more\n")
        random = Random(f"{os.environ['CHAOS_PRESSED']} {starts.tell()}")
    request = scheduler.Scheduler.request

    def noted(*given: Any) -> Any:
        grants = request(*given)
        if grants.holds:
            with (work / "held").open("a") as out:
                out.write(" ".join(sorted(grants.holds)) + "\n")
        return grants

    with pressed(*random.choice(BUDGETS)), patch.object(scheduler.Scheduler, "request", noted):
        policy, seconds = random.choice(POLICIES), random.choice(SECONDS)
        updaters.main(data, work, None, scheduler=policy, batch_seconds=seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
