"""Claim: in a burst of ten times the rate, Hybrid keeps to its memory with the latency of the best.

C-MR's figure 7. A writer appends events to a file that a flow follows, each with the moment it was
written; after some seconds it writes ten times as many for ten seconds. The workflow is that of the
paper's figure 1: jobs that fork from one input, with differing selectivities, sizes of results and
costs, two of which meet in a third. Policies run one after the other, each in a process of its own
with the same budget. Latency is from the end of a window to its results in the driver; memory is
what the system says is resident of driver, JVM and workers, seen from outside ten times a second.

The burst is about three times what two cores can process: a policy is asked only where not
everything fits into a batch, in time or in memory, and where the burst is just a little more than
that, latency says how fast the machine was at the moment and nothing else. The budget is the
paper's 2 GB, of which Spark and Python take about 0.9 by themselves; with 1.5 it was mostly these
that were measured. In the container it is 1.35 GB. How much of the processors others had taken (on
a machine that is itself one of several on another) is given, since latency follows from it. In how
many batches a policy was asked, in how many Hybrid drew MEM, and how much was kept waiting at
operators (which lies on disk) is counted. Latency counts once results come soon after their
windows. Policies take turns for several rounds; medians are given.

The same is done with busy processes on every core, and in a container with less memory than that:
there also with a budget that the container does not have, as `odf alone`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, goal, markdown, module, plot, workspace

POLICIES = ("odf", "mem", "hybrid")
ALONE = "odf alone"
WAYS = ("calm", "stressed", "contained")
BUDGET = 2 << 30
LIMIT = 1536 << 20  # of the container
PLENTY = 16 << 30
RATE = 10_000  # events a second
ROUNDS = 3
WARM = 8.0  # seconds before it counts, at least
COLD = 40.0  # and at most, if results come late
PATIENCE = 240.0  # seconds after the last record
SOON = 2.0  # seconds after its end at which a window leaves once a flow is warm
BURST = 10  # times the rate
PAYLOAD = "x" * 400
KEYS = 200
_CGROUP = Path("/sys/fs/cgroup")


# -- the flow --------------------------------------------------------------------------------------


def few(row: dict[str, Any]) -> dict[str, Any] | None:
    """A map that lets one in five through."""
    return {"k": row["k"], "v": row["v"]} if row["v"] % 5 == 0 else None


def longest(key: Any, records: list[dict[str, Any]], window: Any) -> dict[str, Any]:
    """A reduce over whole records: nothing is combined before it."""
    return {"n": len(records), "size": sum(len(one["p"]) for one in records)}


def scored(event: Any, slate: dict[str, Any], ctx: Any) -> list[dict[str, Any]]:
    """An updater that makes two of every event, each as large, with some work."""
    slate["n"] = slate.get("n", 0) + 1
    slate["s"] = (slate.get("s", 0) * 31 + sum(map(ord, event.value["p"][:40]))) % 1_000_003
    return [{"k": event.key, "v": slate["s"], "p": f"{n}{event.value['p']}"} for n in range(2)]


def build(place: Path, told: Any) -> Any:
    """The workflow; every result is told with the step it came from."""
    import millstream as ms

    flow = ms.Flow("burst")
    schema = "at bigint, k bigint, v bigint, p string"
    log = ms.Files(
        place, format="csv", schema=schema, time="at", time_unit="us", lateness="0s", follow=True
    )
    events = flow.source(log, name="events")
    second = ms.tumbling("1s")
    sums = events.map(few).key_by("k").window(second).agg(n=ms.count(), s=ms.sum("v")).named("sums")
    scores = events.key_by("k").update(scored, name="scores")
    pieces = scores.key_by("k").window(second).reduce(longest).named("pieces")
    joined = sums.select("k", "n").union(pieces.select("k", "n"))
    totals = joined.key_by().window(ms.tumbling("2s")).agg(n=ms.sum("n")).named("totals")
    for stream in (sums, pieces, totals):
        stream.sink(ms.Call(told(stream.name)), name=f"{stream.name} out")
    return flow


class Counted:
    """A policy, the batches in which it was asked and drew MEM, and what waited at operators."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.drawn = policy, set[int]()
        self.asked: dict[int, int] = {}  # batch -> bytes that wait at operators

    def rank(self, queue: Any, request: Any) -> float:
        """As the policy says."""
        much = queue.bytes if queue.kind == "operator" else 0
        self.asked[request.batch] = self.asked.get(request.batch, 0) + much
        if hasattr(self.policy, "chance") and request.draw < self.policy.chance(request.memory):
            self.drawn.add(request.batch)
        return float(self.policy.rank(queue, request))


def run_side(place: Path, policy: str, budget: int, seconds: float) -> None:
    """One policy: follow the log until nothing comes any more; results go to standard output."""
    results: list[tuple[str, float, float, int]] = []

    def told(step: str) -> Any:
        def on_row(row: dict[str, Any]) -> None:
            end = row.get("window_end")
            if end is not None:
                results.append((step, end.timestamp(), time.time(), int(row["n"])))

        return on_row

    from millstream.scheduling import policy_of

    flow, counted = build(place / "in", told), Counted(policy_of(policy))
    handle = flow.start(
        checkpoint=place / "ck", scheduler=counted, memory=budget, master="local[2]"
    )
    (place / "ready").write_text("")
    last = time.time() + seconds
    while handle.running and time.time() < last and not (place / "over").exists():
        if any(at - end < SOON for _, end, at, _ in results[-9:]):
            (place / "warm").write_text("")
        time.sleep(0.2)
    wait = time.time() + PATIENCE
    # What has not left yet would make the mean look better.
    while handle.running and handle.progress.pending_bytes:
        if time.time() > wait:
            raise RuntimeError(f"not done {PATIENCE:.0f} s after the last record")
        time.sleep(0.2)
    time.sleep(2)
    progress = handle.stop()
    said = {"results": results, "batches": progress.batch + 1, "asked": len(counted.asked)}
    waited = max(counted.asked.values(), default=0)
    print(json.dumps({**said, "drawn": len(counted.drawn), "waited": waited}))


# -- from outside ----------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Appends events, ten times as many while the burst lasts."""

    def __init__(self, place: Path, rate: int, before: float, burst: float, after: float) -> None:
        super().__init__(daemon=True)
        self.place, self.rate = place, rate
        self.before, self.burst, self.after = before, burst, after
        self.started = 0.0
        self.written = 0

    def run(self) -> None:
        """Write by the clock, twenty times a second."""
        self.started = time.time()
        end = self.before + self.burst + self.after
        owed = 0.0
        last = self.started
        with (self.place / "in" / "events.csv").open("a", buffering=1 << 20) as file:
            while (now := time.time()) - self.started < end:
                since = now - self.started
                bursting = self.before <= since < self.before + self.burst
                owed += (now - last) * self.rate * (BURST if bursting else 1)
                last = now
                micros = int(now * 1e6)
                for n in range(self.written, self.written + int(owed)):
                    file.write(f"{micros},{n * 7919 % KEYS},{n},{PAYLOAD}\n")
                self.written += int(owed)
                owed -= int(owed)
                file.flush()
                time.sleep(0.05)


def warm_up(writer: Writer, process: subprocess.Popen[str]) -> None:
    """Write at the usual rate until results come soon: the first batches of a JVM are slow."""
    begun = time.time()
    while time.time() - begun < (WARM if (writer.place / "warm").exists() else COLD):
        if process.poll() is not None:
            break
        some = Writer(writer.place, writer.rate, 0.0, 0.0, 1.0)
        some.written = writer.written
        some.run()
        writer.written = some.written


def resident(process: int) -> int:
    """Bytes that a process and all below it have, as the system says, and what lies in memory.

    What lies in memory for all of them counts once, not for every process that has it mapped.
    """
    return sum(map(_own, [process, *_below(process)])) + _in_memory(process)


def _below(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{process}/task"):
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split():
                yield int(child)
                yield from _below(int(child))


def _own(process: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        told = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "RssShmem")))
        much = {name: int(value.split()[0]) << 10 for name, value in told.items()}
        return much.get("VmRSS", 0) - much.get("RssShmem", 0)
    return 0


def _in_memory(process: int) -> int:
    """Bytes in the folder in memory that a process holds."""
    total = 0
    for lock in Path(f"/dev/shm/millstream-{os.getuid()}").glob("*/lock"):
        with contextlib.suppress(OSError):
            if f"pid {process}" in lock.read_text():
                files = (one for one in lock.parent.rglob("*") if one.is_file())
                total += sum(one.lstat().st_blocks * 512 for one in files)
    return total


def ticks() -> tuple[int, int]:
    """Of all processors so far, and those of them that another machine had."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        figures = [int(one) for one in Path("/proc/stat").read_text().split()[1:9]]
        return sum(figures), figures[7]
    return 0, 0


def spin() -> None:
    """A program beside: takes what it gets of a core."""
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def stressed(wanted: bool) -> Iterator[None]:
    """Busy processes on every core."""
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for one in busy if wanted else ():
        one.start()
    try:
        yield
    finally:
        for one in busy if wanted else ():
            one.terminate()
            one.join()


@contextlib.contextmanager
def contained(limit: int | None) -> Iterator[tuple[str, ...]]:
    """A container with so much memory, as the words before a command; nothing without a limit."""
    if limit is None:
        yield ()
        return
    place, file = _controller()
    group = place / f"millstream-burst-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(str(limit))
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def _controller() -> tuple[Path, str]:
    """Where control groups of memory are made, and the file of their limit: version 1 or 2."""
    if (_CGROUP / "memory" / "memory.limit_in_bytes").exists():
        return _CGROUP / "memory", "memory.limit_in_bytes"
    return _CGROUP, "memory.max"


def can_contain() -> bool:
    """Whether this user may make such containers."""
    place, file = _controller()
    if not os.access(place, os.W_OK):
        return False
    if file != "memory.max":
        return True
    with contextlib.suppress(OSError):
        return "memory" in (place / "cgroup.subtree_control").read_text().split()
    return False


def one_policy(
    policy: str, rate: int, times: tuple[float, float, float], *, stress: bool, limit: int | None
) -> dict[str, Any]:
    """Run one policy; gives results and memory over time, in seconds since the writer began."""
    with workspace("burst") as place, stressed(stress), contained(limit) as words:
        (place / "in").mkdir()
        (place / "in" / "events.csv").write_text("at,k,v,p\n")
        writer = Writer(place, rate, *times)
        budget = BUDGET if limit is None else int(0.9 * limit)
        given = PLENTY if policy == ALONE else budget
        command = [*words, *module("burst", place, policy.split()[0], given, sum(times) + PATIENCE)]
        out = (place / "out").open("w+")
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        try:
            while not (place / "ready").exists() and process.poll() is None:
                time.sleep(0.1)
            warm_up(writer, process)
            writer.start()
            samples = []
            limit_at = time.time() + sum(times) + PATIENCE + 30
            before = ticks()
            while process.poll() is None and time.time() < limit_at:
                samples.append((time.time() - writer.started, resident(process.pid)))
                if not writer.is_alive() and not (place / "over").exists():
                    (place / "over").write_text("")
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
        out.seek(0)
        lines = out.read().strip().splitlines()
        failed = process.returncode != 0 or not lines
        none = {"results": [], "batches": 0, "asked": 0, "drawn": 0, "waited": 0}
        told = none if failed else json.loads(lines[-1])
        total, stolen = (now - then for now, then in zip(ticks(), before, strict=True))
        found = figures_of(told, samples, writer, times) | {"stolen": stolen / max(1, total)}
        agree = None if failed else agrees(place, told["results"])
        why = (said.strip().splitlines() or ["it ended without a word"])[-1] if failed else ""
        return found | {"failed": why, "agree": agree, "budget": budget}


def agrees(place: Path, results: list[Any]) -> bool:
    """Whether windows that left have as many records as DuckDB counts in the log.

    What an updater gives has its time one microsecond after that of its event.
    """
    import duckdb

    query = f"""select 'sums', "at" // 1000000 + 1, count(*) filter (v % 5 = 0)
        from read_csv('{place}/in/events.csv', header = true) group by all
        union all select 'pieces', ("at" + 1) // 1000000 + 1, 2 * count(*)
        from read_csv('{place}/in/events.csv', header = true) group by all"""
    truth = {(step, end): count for step, end, count in duckdb.sql(query).fetchall()}
    found: dict[tuple[str, int], int] = {}
    for step, end, _, n in results:
        if step in ("sums", "pieces"):
            found[step, round(end)] = found.get((step, round(end)), 0) + n
    return bool(found) and all(truth[window] == n for window, n in found.items())


def figures_of(
    told: dict[str, Any], samples: list[Any], writer: Any, times: tuple[float, ...]
) -> dict[str, Any]:
    """Latency and memory by the second, and what they come to."""
    before, burst, after = times
    by_second: dict[int, list[float]] = {}
    for _, end, at, _ in told["results"]:
        if 0 <= end - writer.started <= sum(times):
            by_second.setdefault(int(end - writer.started), []).append(at - end)
    latency = {second: sum(all_) / len(all_) for second, all_ in sorted(by_second.items())}
    calm = [late for second, late in latency.items() if second < before]
    normal = sum(calm) / len(calm) if calm else float("nan")
    slow = [second for second, late in latency.items() if late > 1.5 * normal + 0.5]
    everything = [late for all_ in by_second.values() for late in all_]
    return {
        "latency": latency,
        "memory": [(round(at, 1), much) for at, much in samples],
        "mean_latency": sum(everything) / len(everything) if everything else None,
        "most_latency": max(latency.values(), default=None),
        "normal": normal,
        "recovered": max(slow, default=0) + 1 - (before + burst) if latency else None,
        "most_memory": max(much for at, much in samples if at >= 0),
        "batches": told["batches"],
        "asked": told["asked"],
        "drawn": told["drawn"],
        "waited": told["waited"],
        "written": writer.written,
        "after": after,
    }


# -- the benchmark ---------------------------------------------------------------------------------


def run(quick: bool = False) -> dict[str, Any]:
    """All policies: in calm, beside busy processes, and with little memory."""
    ways = WAYS[:1] if quick else WAYS if can_contain() else WAYS[:2]
    return summary({way: measure(way, quick) for way in ways})


def measure(way: str, quick: bool = False) -> dict[str, Any]:
    """All policies in turns."""
    if way == "contained" and not can_contain():
        raise RuntimeError("contained: this user may make no control groups with a memory limit")
    times = (4.0, 3.0, 8.0) if quick else (4.0, 10.0, 36.0)
    limit = LIMIT if way == "contained" else None
    rounds: dict[str, list[dict[str, Any]]] = {}
    order = [ALONE] if limit else []
    for turn in range(1 if quick else ROUNDS):
        order += (*POLICIES[turn % 3 :], *POLICIES[: turn % 3])
    load = os.getloadavg()[0]
    for policy in order:
        one = one_policy(policy, RATE, times, stress=way == "stressed", limit=limit)
        rounds.setdefault(policy, []).append(one)
        print(
            f"  {way:9} {policy:9} mean latency {one['mean_latency'] or 0:6.2f} s, most "
            f"{one['most_latency'] or 0:6.2f} s, back after {one['recovered'] or 0:5.1f} s,"
            f" memory {one['most_memory'] / 2**20:6.0f} MB of {one['budget'] / 2**20:.0f}, "
            f"asked in {one['asked']} of {one['batches']} batches, MEM drawn in "
            f"{one['drawn']}, at most {one['waited'] / 2**20:.1f} MB at operators"
            f", others had {100 * one['stolen']:.0f} %{' FAILED' if one['failed'] else ''}",
            flush=True,
        )
    by = {policy: median_of(all_of) for policy, all_of in rounds.items()}
    return {"times": times, "load": round(load, 2), "by": by}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """What was seen in all ways, beside what was wanted, and the picture."""
    quick = any(one["times"][1] < 10 for one in found.values())
    draw(found, quick)
    ended = [one for way in found.values() for one in way["by"].values() if not one["failed"]]
    return {
        "rate": RATE,
        "found": found,
        "agree": bool(ended) and all(one["agree"] for one in ended),
        "goals": goals({way: one["by"] for way, one in found.items()}),
    }


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median of the mean latencies; with the most memory of all of them."""
    ended = [one for one in rounds if one["mean_latency"] is not None] or rounds
    ended.sort(key=lambda one: one["mean_latency"] or 0.0)
    return ended[len(ended) // 2] | {
        "most_memory": max(one["most_memory"] for one in rounds),
        "recovered": sorted(one["recovered"] or 0.0 for one in ended)[len(ended) // 2],
        "means": [one["mean_latency"] for one in rounds],
        "failed": next((one["failed"] for one in rounds if one["failed"]), ""),
        "waited": max(one["waited"] for one in rounds),
        "stolen": max(one["stolen"] for one in rounds),
        "agree": all(one["agree"] for one in rounds if not one["failed"]),
    }


def goals(found: dict[str, Any]) -> list[Any]:
    """What Hybrid has to show."""
    told = []
    for way, by in found.items():
        hybrid, others = by["hybrid"], [by["odf"], by["mem"]]
        failed = sum(bool(one["failed"]) for policy, one in by.items() if policy != ALONE)
        told.append(goal(f"{way}: policies that failed", "0", failed, not failed))
        share = hybrid["most_memory"] / hybrid["budget"]
        told.append(goal(f"{way}: memory of Hybrid", "at most the budget", share, share <= 1))
        if hybrid["mean_latency"] is None:
            continue
        best = min((one["mean_latency"] for one in others if one["mean_latency"]), default=0.0)
        ratio = hybrid["mean_latency"] / best if best else 0.0
        told.append(goal(f"{way}: mean latency of Hybrid", "at most 1.1", ratio, ratio <= 1.1))
        first = min(one["recovered"] for one in others if one["recovered"] is not None)
        behind = max(0.0, hybrid["recovered"] - first)
        told.append(goal(f"{way}: Hybrid is back, s after the first", "1", behind, behind <= 1))
    return told


def draw(found: dict[str, Any], quick: bool) -> None:
    """Latency and memory over time, both for every way."""
    with plot("burst", quick, panels=2 * len(found)) as axes:
        for number, (way, one_way) in enumerate(found.items()):
            by, times = one_way["by"], one_way["times"]
            late, memory = axes[2 * number], axes[2 * number + 1]
            for policy, one in by.items():
                seconds = sorted(one["latency"].items(), key=lambda at: int(at[0]))
                late.plot([int(at) for at, _ in seconds], [v for _, v in seconds], label=policy)
                end = sum(times) + 5
                seen = [(at, much / 2**30) for at, much in one["memory"] if 0 <= at <= end]
                memory.plot([at for at, _ in seen], [much for _, much in seen], label=policy)
            memory.axhline(next(iter(by.values()))["budget"] / 2**30, color="grey", ls="--")
            for axis in (late, memory):
                axis.axvspan(times[0], times[0] + times[1], color="orange", alpha=0.15)
                axis.set_xlabel("seconds")
            late.set_title(f"{way}: latency, s")
            memory.set_title(f"{way}: resident, GB")


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = [
        [
            f"{way}, {policy}",
            one["mean_latency"],
            one["most_latency"],
            one["recovered"],
            one["most_memory"] / 2**20,
            one["budget"] / 2**20,
            one["batches"],
            one["asked"],
            one["drawn"],
            one["waited"] / 2**20,
            100 * one["stolen"] if "stolen" in one else None,
            ", ".join("failed" if mean is None else f"{mean:.2f}" for mean in one["means"]),
        ]
        for way, one_way in figures["found"].items()
        for policy, one in one_way["by"].items()
    ]
    head = ["", "mean latency, s", "most", "back after, s", "memory, MB", "budget", "batches"]
    head += ["policy asked in", "MEM drawn in", "at operators, MB", "taken by others, %"]
    head += ["mean latency of each round"]
    return markdown(head, rows)


if __name__ == "__main__":
    run_side(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
