"""Dead letters: written with their batch, read again; and the end of a run that has too many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from millstream.errors import RunError
from millstream.ops.records import DeadLetter
from millstream.plan.stages import Plan
from millstream.run.batches import failing
from millstream.run.sources.tracking import Tracker
from millstream.settings import Settings
from millstream.state.manifests import Manifest
from millstream.state.storage import Storage


@dataclass(frozen=True)
class Letters:
    """The dead letters of one run."""

    directory: Storage
    settings: Settings
    trackers: dict[str, Tracker]

    def write(self, plan: Plan, stem: str, dead: list[DeadLetter]) -> str:
        """One line each: the step, the error, the record, and its place. Gives where they are."""
        names = {plan.number(node): node.name for node in plan.sources()}
        lines = []
        for letter in dead:
            source = names.get(letter.source)
            tracker = self.trackers.get(source or "")
            place = (
                {"offset": letter.position} if tracker is None else tracker.place(letter.position)
            )
            told = {"operator": letter.operator, "error": letter.error, "raw": letter.raw}
            lines.append(msgspec.json.encode({**told, "source": source, **place}))
        self.directory.put(f"{stem}.jsonl", b"\n".join(lines) + b"\n")
        return self.directory.where(f"{stem}.jsonl")

    def check(
        self, plan: Plan, before: Manifest, manifest: Manifest, dead: list[DeadLetter]
    ) -> None:
        """Stop before the commit if too much failed, or at the end if a step failed on all."""
        limit, grace = self.settings.dead_letter_limit, self.settings.dead_letter_grace
        if limit >= 1:
            return
        sources = (manifest.ledger.get(node.name, {}) for node in plan.sources())
        offered = sum(account.get("offered", 0) for account in sources)
        whole = failing.Share(manifest.lost, offered, "records")
        share = failing.too_many(manifest.ledger, whole, dead, limit, grace)
        if share is not None:
            where = self.write(plan, f"rejected-{manifest.batch:08d}", dead)
            why = failing.most_frequent(dead)
            raise RunError(
                f"{share} are dead letters, more than the limit of {limit:.1%}; in this batch: "
                f"{why}. Batch {manifest.batch} was not committed; its dead letters are in "
                f"{where}. {_remedy(why)}, or raise dead_letter_limit"
            )
        if manifest.complete:
            share = failing.all_failed(manifest.ledger, (node.name for node in plan.nodes))
            if share is not None:
                raise self._failed_on_all(plan, before, manifest, share, dead)

    def _failed_on_all(
        self,
        plan: Plan,
        before: Manifest,
        manifest: Manifest,
        share: failing.Share,
        dead: list[DeadLetter],
    ) -> RunError:
        """Below the grace too: a flow in which nothing went well must not look complete."""
        if dead:
            self.write(plan, f"rejected-{manifest.batch:08d}", dead)
        earlier = errors_in(self.directory, share.step)
        now = (letter.error for letter in dead if letter.operator == share.step)
        error = next(chain(earlier, now), "")
        again = "run the same command again"
        if before.ledger.get(share.step or "", {}).get("offered"):
            again = "start with a new checkpoint, as what failed in earlier batches is committed"
        return RunError(
            f"{share.step!r} failed on all its input, {share}; the first error: {error}. Batch "
            f"{manifest.batch} was not committed; the dead letters are in "
            f"{self.directory.where()}. {_remedy(error)} and {again}; dead_letter_limit=1 lets it "
            "end"
        )


def _remedy(error: str) -> str:
    if "ModuleNotFoundError" in error:
        return "Send the module along with --spark spark.submit.pyFiles=MODULE.py"
    return "Correct the function or the data"


def letters_in(dead: Storage) -> Iterator[dict[str, Any]]:
    """Committed dead letters, the oldest first."""
    for name in dead.names():
        if name[0].isdigit() and name.endswith(".jsonl"):
            for line in dead.read(name).splitlines():
                letter: dict[str, Any] = msgspec.json.decode(line)
                yield letter


def errors_in(dead: Storage, step: str | None, *, failed: bool = False) -> Iterator[str]:
    """The errors of a step in committed dead letters, the oldest first.

    `failed`: only those of results, which are of no source.
    """
    for letter in letters_in(dead):
        if letter["operator"] == step and not (failed and letter.get("source")):
            yield letter["error"]
