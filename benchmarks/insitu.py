"""Claim: programs that run where the records are send far less, and answer sooner.

The comparison of the thesis on Continuous MapReduce: the same query once with an agent on every
machine, which sends partial values of its panes, and once with every line shipped to one place.
Both answer on Spark with the same flow, over the same trades as lines of JSON; shippers are
processes that give their file to whoever connects, agents are processes that read it. All is
connected and warm before the clock starts; it stops when the last window has left. The peer is the
shipping, and DuckDB says whether both are right. There is one machine, whose cores both ways share,
and a loopback that costs next to nothing; so the link to the centre is simulated: all that is sent
to it, lines or messages, goes at 100 Mbit/s together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.common import ROOT, goal, markdown, module, workspace

AGENTS = 4
TRADES, QUICK_TRADES = 2_000_000, 200_000
SYMBOLS = 500
SECONDS = 1200
BEGIN = 1_700_000_000
LINK = 12_500_000  # bytes a second to the centre, shared evenly by those who send
FIRST = 100  # records that warm everything up
LIMIT = 400.0  # seconds for one run
ROUNDS, QUICK_ROUNDS = 3, 1


def run(quick: bool = False) -> dict[str, Any]:
    """Both ways in turns, over the same files."""
    trades = QUICK_TRADES if quick else TRADES
    with workspace("insitu") as work:
        raw = write(work, trades)
        packed = sum(_packed(path) for path in (work / "in").glob("*/*.json"))
        truth = answer_of_duckdb(work)
        runs: dict[str, list[dict[str, Any]]] = {"insitu": [], "central": []}
        agree = True
        for number in range(QUICK_ROUNDS if quick else ROUNDS):
            for way in runs:
                one = measure(work, way, number)
                agree = agree and one.pop("answer") == truth
                one["bytes"] = one["bytes"] or raw
                runs[way].append(one)
                print(f"  {way}: {one['bytes']:,} bytes, {one['latency']:.2f} s", flush=True)
    usual = {
        way: {
            "bytes": each[0]["bytes"],
            "latency": statistics.median(one["latency"] for one in each),
        }
        for way, each in runs.items()
    }
    fewer = raw / usual["insitu"]["bytes"]
    sooner = 1 - usual["insitu"]["latency"] / usual["central"]["latency"]
    return {
        "trades": trades,
        "agents": AGENTS,
        "packed": packed,  # lines by the compression that messages have
        "runs": runs,
        "usual": usual,
        "agree": agree,
        "goals": [
            goal("bytes over the network, times less", "at least 50", fewer, fewer >= 50),
            goal("latency, % less", "at least 35", 100 * sooner, sooner >= 0.35),
        ],
    }


def write(work: Path, trades: int) -> int:
    """A file of lines for every machine, all symbols in each; gives the bytes of all."""
    rng, size = np.random.default_rng(7), 0
    for number in range(AGENTS):
        count = trades // AGENTS
        times = BEGIN + np.sort(rng.integers(0, SECONDS * 1000, count)) / 1000
        symbols = rng.zipf(1.3, count) % SYMBOLS
        cents = 10_000 + rng.standard_normal(count).cumsum().round().astype(int)
        path = work / "in" / f"{number}" / "trades.json"
        path.parent.mkdir(parents=True)
        with path.open("w") as out:
            for at, symbol, price in zip(times, symbols, cents, strict=True):
                out.write(f'{{"ts": {at:.3f}, "symbol": "S{symbol}", "cents": {price}}}\n')
        size += path.stat().st_size
    return size


def _packed(path: Path) -> int:
    return len(pa.compress(path.read_bytes(), "zstd", asbytes=True))


def answer_of_duckdb(work: Path) -> list[list[Any]]:
    """Trades and cents of every minute, which are whole numbers."""
    found = duckdb.sql(
        f"""select floor(ts / 60)::bigint * 60 + 60 as minute, count(*), sum(cents)::bigint
        from read_json('{work}/in/*/trades.json', format='newline_delimited')
        group by 1 order by 1"""
    )
    return [list(row) for row in found.fetchall()]


def answer_of(out: Path) -> list[list[Any]]:
    found = duckdb.sql(
        f"""select epoch(window_end::timestamptz)::bigint as minute, sum(n)::bigint,
                   sum(cents)::bigint
        from read_json('{out}/*.jsonl', format='newline_delimited') group by 1 order by 1"""
    )
    return [list(row) for row in found.fetchall()]


def measure(work: Path, way: str, number: int) -> dict[str, Any]:
    """One run; how long it took from the start of reading, and what went over the network."""
    place = work / f"{way}-{number}"
    place.mkdir()
    ports = _free_ports(AGENTS)
    senders = [_process(way, work, place, n, *ports) for n in range(AGENTS)]
    centre = _process("centre", work, place, way, *ports)
    try:
        _until(place / "warm", centre)
        begun = time.perf_counter()
        (place / "go").touch()
        _until(place / "done", centre)
        latency = time.perf_counter() - begun
        centre.wait(60)
        for one in senders:
            one.wait(60)
    finally:
        for one in (*senders, centre):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    sent = sum(int(path.read_text()) for path in place.glob("*.bytes"))
    return {"latency": round(latency, 2), "bytes": sent, "answer": answer_of(place / "out")}


def _until(path: Path, centre: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT
    while not path.exists():
        if centre.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{path.name} did not come to be within {LIMIT} s")
        time.sleep(0.01)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_ones:
        several = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for one in several:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in several]


def _process(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        module("insitu", *arguments), text=True, cwd=ROOT, start_new_session=True
    )


# -- in processes of their own --------------------------------------------------------------------


def _flow(work: Path, place: Path, way: str, ports: list[int], number: int = 0) -> Any:
    import millstream as ms

    schema = "ts double, symbol string, cents bigint"
    lines = {"schema": schema, "time": "ts", "lateness": "1s", "idle_timeout": None}
    flow = ms.Flow("insitu")
    if way == "insitu":
        reads = ms.Files(work / "in" / f"{number}" / "trades.json", format="json", **lines)
        names = [f"node-{one}" for one in range(AGENTS)]
        collector = ms.Collector(f"127.0.0.1:{ports[0]}", reads, agents=names, boundary="200ms")
        trades = flow.source(collector, name="trades")
    else:
        sockets = [
            flow.source(ms.Socket("127.0.0.1", port, format="json", **lines), name=f"node-{n}")
            for n, port in enumerate(ports)
        ]
        trades = sockets[0].union(*sockets[1:])
    counted = trades.key_by("symbol").window(ms.tumbling("1m"))
    counted.agg(n=ms.count(), cents=ms.sum("cents")).sink(ms.Jsonl(place / "out"))
    return flow


def centre(work: Path, place: Path, way: str, *ports: str) -> None:
    """The flow on Spark: says when its first batch is committed, and when all is done."""
    numbers = [int(port) for port in ports]
    if way == "central":
        for port in numbers:  # a socket that nobody listens on ends the run
            while True:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind(("127.0.0.1", port))
                    except OSError:
                        break
                time.sleep(0.05)
    handle = _flow(work, place, way, numbers).start(place / "checkpoint")
    while handle.running and handle.progress.rows < AGENTS * FIRST / 2:
        time.sleep(0.01)
    time.sleep(1)  # the second batch is the first that is warm
    (place / "warm").touch()
    handle.wait()
    (place / "done").touch()


def insitu(work: Path, place: Path, number: str, *ports: str) -> None:
    """An agent."""
    from millstream.agent.agent import Agent
    from millstream.agent.sending import Connection

    flow = _flow(work, place, "insitu", [int(port) for port in ports], int(number))
    to = Connection(f"127.0.0.1:{ports[0]}", None)
    agent = Agent(flow, to, f"node-{number}", place / "agents" / number, rows=FIRST)
    sent, put = 0, to.put

    def counted(head: Any, blocks: list[bytes]) -> Any:
        nonlocal sent
        import msgspec

        size = len(msgspec.json.encode(head)) + sum(map(len, blocks))
        sent += size
        time.sleep(size / (LINK / AGENTS))
        return put(head, blocks)

    to.put = counted  # type: ignore[method-assign]
    while agent.outbox.last < 0 or agent.durable < 0:
        agent.step()
        time.sleep(0.01)
    while not (place / "go").exists():
        agent.send()
        time.sleep(0.005)
    agent.rows = 100_000
    agent.run()
    agent.close()
    (place / f"{number}.bytes").write_text(str(sent))


def central(work: Path, place: Path, number: str, *ports: str) -> None:
    """A shipper: its file, to the one that connects."""
    with (
        socket.create_server(("127.0.0.1", int(ports[int(number)]))) as server,
        (work / "in" / number / "trades.json").open("rb") as lines,
    ):
        connection, _ = server.accept()
        with connection:
            for _ in range(FIRST):
                connection.sendall(lines.readline())
            while not (place / "go").exists():
                time.sleep(0.005)
            begun, sent = time.monotonic(), 0
            while piece := lines.read(1 << 16):
                connection.sendall(piece)
                sent += len(piece)
                time.sleep(max(0.0, begun + sent / (LINK / AGENTS) - time.monotonic()))


# -- telling --------------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    names = {"insitu": "agents, partial values", "central": "lines shipped"}
    rows = [
        [name, f"{figures['usual'][way]['bytes']:,}", figures["usual"][way]["latency"]]
        for way, name in names.items()
    ]
    rows.append(["lines, if they were compressed", f"{figures['packed']:,}", "–"])
    return markdown(["", "bytes over the network", "seconds to the answer"], rows)


if __name__ == "__main__":
    work_, place_ = Path(sys.argv[2]), Path(sys.argv[3])
    {"centre": centre, "insitu": insitu, "central": central}[sys.argv[1]](
        work_, place_, *sys.argv[4:]
    )
