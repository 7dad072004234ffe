"""Claim: what a batch costs the driver and the network grows with the work, not with the cluster.

One flow in one process, without Spark: 1,000 participants report through every reader, a window
counts what they say, and an updater keeps a slate for each key of that. It runs with 2, 16, 128 and
512 partitions, and each time once with little stored and once with a million segments in the
manifest. These are made up: only their names exist, and they are of slates in shards that no record
comes to, so that no task opens them. All that Spark would carry is weighed: what the driver sends
to tasks, what tasks send each other, what comes back, and what a manifest weighs. The seconds are
those the driver spends beside the tasks.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import goal, markdown, plot, workspace

PARTITIONS = (2, 16, 128, 512)
PARTICIPANTS = 1_000
KEYS = 64
SEGMENTS = 1_000_000
PER_SHARD = 10  # fewer than make a task merge them
PER_FILE = 4
BATCHES = 3
NEVER = 2**61  # when they expire
FIGURES = ("to_tasks", "between", "to_driver", "manifest", "seconds")


def run(quick: bool = False) -> dict[str, Any]:
    """Weigh batches with more and more partitions, with little and with much stored."""
    partitions = PARTITIONS[:2] if quick else PARTITIONS
    stored = SEGMENTS // 100 if quick else SEGMENTS
    found: dict[str, Any] = {}
    for parts in partitions:
        for segments in (0, stored):
            with workspace("scale") as work:
                figures = measure(work, parts, segments, stored // PER_SHARD)
            found[f"{parts} {segments}"] = figures
            told = ", ".join(f"{name} {figures[name]:,}" for name in FIGURES)
            print(f"  {parts:>4} partitions, {segments:>9,} segments: {told}", flush=True)
    figures = {"partitions": list(partitions), "stored": stored, "runs": found}
    figures["goals"] = _goals(figures)
    figures["agree"] = len({one["results"] for one in found.values()}) == 1
    _plot(figures, quick)
    return figures


def measure(work: Path, parts: int, segments: int, shards: int) -> dict[str, Any]:
    """What the median batch weighs, after a first one that is not counted."""
    from millstream.testing import Driver

    driver = Driver(
        _flow(), parallelism=parts, checkpoint=work / "checkpoint", now=2_000_000.0, shards=shards
    )
    with driver:
        executor = driver._executor = _weighing(driver.engine.plan, parts)
        for number in range(3):
            _batch(driver, parts, number)
        _store(driver.engine, segments)
        _batch(driver, parts, 3)  # the first that finds so much stored may write all of it
        seen: dict[str, list[float]] = {name: [] for name in FIGURES}
        for number in range(4, BATCHES + 4):
            executor.start()
            _batch(driver, parts, number)
            seen["seconds"].append(driver.engine.pace.last_seconds - executor.busy)
            newest = max((work / "checkpoint" / "manifests").glob("[0-9]*"))
            seen["manifest"].append(newest.stat().st_size)
            for name in ("to_tasks", "between", "to_driver"):
                seen[name].append(executor.weight[name])
        results = len(driver.output())
    figures = {name: int(statistics.median(several)) for name, several in seen.items()}
    figures["seconds"] = round(statistics.median(seen["seconds"]), 4)
    return {**figures, "results": results}


def _flow() -> Any:
    import millstream as ms

    flow = ms.Flow("scale")
    source = ms.Files(
        "nowhere",
        time="ts",
        lateness="1s",
        follow=True,
        participant="machine",
        participants=[_machine(who) for who in range(PARTICIPANTS)],
    )
    (
        flow.source(source, name="readings")
        .key_by("key")
        .window(ms.tumbling("10s"))
        .agg(n=ms.count(), total=ms.sum("value"))
        .key_by("key")
        .update(_latest, name="latest", order="arrival")
        .sink(ms.Memory(), name="out")
    )
    return flow


def _latest(event: Any, slate: Any, ctx: Any) -> Any:
    """Keep what came last."""
    slate["n"] = event.value["n"]
    return {"n": event.value["n"]}


def _machine(who: int) -> str:
    return f"machine-{who:04d}"


def _batch(driver: Any, parts: int, number: int) -> None:
    """Every reader gets a record of every participant; each batch closes a window."""
    for part in range(parts):
        records = [
            {
                "ts": 1_000_000.0 + 10 * number + part / parts,
                "machine": _machine(who),
                "key": f"key-{(who + part) % KEYS}",
                "value": who,
            }
            for who in range(PARTICIPANTS)
        ]
        driver.push("readings", records)
    driver.step()


def _store(engine: Any, count: int) -> None:
    """Put segments into the manifest that stand for much state."""
    import msgspec

    from millstream.state.segments import Segment, SegmentFile

    segments, files = dict(engine.manifest.segments), dict(engine.manifest.files)
    used = {shard for t in segments.values() for shards in t.values() for shard in shards}
    shards: dict[str, list[Segment]] = {}
    for number in range(count):
        file = f"latest/slates/00000000-0000-{number // PER_FILE:012d}.arrow"
        files[file] = SegmentFile(file, 100_000_000, number)
        segment = Segment(file, number % PER_FILE, 10_000_000, NEVER, NEVER)
        shard = str(number // PER_SHARD)
        if shard not in used:
            shards.setdefault(shard, []).append(segment)
    tables = segments["latest"]
    segments["latest"] = {**tables, "slates": {**tables["slates"], **shards}}
    held = msgspec.structs.replace(engine.manifest, segments=segments, files=files)
    engine.footing.manifest = held


def _weighing(plan: Any, parts: int) -> Any:
    """An executor that runs tasks in this process, and weighs what Spark would carry."""
    from pyspark.serializers import CPickleSerializer

    from millstream.run.tasks.executors import InProcess

    serializer = CPickleSerializer()

    class Weighing(InProcess):
        def start(self) -> None:
            self.weight: Counter[str] = Counter()
            self.busy = 0.0
            self.known: dict[int, int] = {}

        def run(self, batch: Any, tasks: Any) -> list[Any]:
            begun = time.perf_counter()
            items = super().run(batch, tasks)
            self.busy += time.perf_counter() - begun
            self.weight["to_driver"] += sum(map(self._item, items))
            return items

        def _ingest(self, batch: Any, task: Any) -> Iterable[Any]:
            self.weight["to_tasks"] += self._size(batch) + self._size(task)
            return super()._ingest(batch, task)

        def _keyed(self, batch: Any, level: int, part: int, *given: Any) -> Iterable[Any]:
            self.weight["to_tasks"] += self._size(batch) + self._size(given[1])
            self.weight["between"] += sum(map(self._item, given[0]))
            return super()._keyed(batch, level, part, *given)

        def _item(self, item: Any) -> int:
            return 20 + self._size(item[3])

        def _size(self, value: Any) -> int:
            """What a value weighs; the same object is packed once, and counts each time."""
            if id(value) not in self.known:
                self.known[id(value)] = len(serializer.dumps(value))
            return self.known[id(value)]

    executor = Weighing(plan, parts)
    executor.start()
    return executor


# -- judging --------------------------------------------------------------------------------------


def _goals(figures: dict[str, Any]) -> list[Any]:
    runs, parts, stored = figures["runs"], figures["partitions"], figures["stored"]
    goals = []
    for name in FIGURES:
        grown = runs[f"{parts[-1]} 0"][name] / runs[f"{parts[0]} 0"][name]
        times = parts[-1] / parts[0]
        wanted = f"at most linear, {times:.0f} times"
        what = f"{name}, partitions {parts[0]} to {parts[-1]}"
        goals.append(goal(what, wanted, grown, grown <= 1.25 * times))
        grown = runs[f"{parts[-1]} {stored}"][name] / runs[f"{parts[-1]} 0"][name]
        what = f"{name}, {stored:,} segments beside none, {parts[-1]} partitions"
        goals.append(goal(what, "flat: at most 1.5 times", grown, grown <= 1.5))
    return goals


def _plot(figures: dict[str, Any], quick: bool) -> None:
    parts, runs = figures["partitions"], figures["runs"]
    with plot("scale", quick, 2) as (weights, seconds):
        for segments, style in ((0, "o-"), (figures["stored"], "s--")):
            for color, name in enumerate(FIGURES[:-1]):
                values = [runs[f"{n} {segments}"][name] for n in parts]
                label = f"{name}, {segments:,} segments"
                weights.plot(parts, values, style, color=f"C{color}", label=label)
            values = [runs[f"{n} {segments}"]["seconds"] for n in parts]
            seconds.plot(parts, values, style, label=f"{segments:,} segments")
        weights.set(xscale="log", yscale="log", xlabel="partitions", ylabel="bytes per batch")
        seconds.set(xscale="log", yscale="log", xlabel="partitions", ylabel="driver, s per batch")


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for parts in figures["partitions"]:
        for segments in (0, figures["stored"]):
            one = figures["runs"][f"{parts} {segments}"]
            sizes = [one[name] / 1e6 for name in FIGURES[:-1]]
            rows.append([f"{parts} partitions, {segments:,} segments", *sizes, one["seconds"]])
    head = ["", "to tasks, MB", "between tasks, MB", "to the driver, MB", "manifest, MB"]
    return markdown([*head, "driver, s"], rows)
