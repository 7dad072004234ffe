"""Eight hosts watched by agents; one of them begins to thrash, and an alert appears (HOP, 4.2).

    python examples/monitoring.py    # then look at http://127.0.0.1:8321; Ctrl-C ends all of it

One command starts everything on this machine: an agent per host, a relay per rack, and the
collector on Spark. Every agent reads figures of this machine four times a second and keeps panes
of its load, the relay of a rack puts those of its hosts together, and the collector has windows
per host, of these per rack, and of these for the data centre.

Real are the figures (psutil: CPU, and bytes swapped). They are those of one machine, so all hosts
say about the same; therefore the paging of one of them is simulated: THRASHING seconds after the
first results its agent adds 400 MB a second to what was swapped.

The load of a host over 20 s is compared with that of all other hosts over 120 s. More than two
standard deviations above their mean is a tentative alert, ten of these within 30 s are an alert.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import millstream as ms

PORT = int(os.environ.get("PORT", "9410"))  # of the collector; relays take those after it
OUT = Path(os.environ.get("OUT", ".millstream"))
THRASHING = float(os.environ.get("THRASHING", "20"))  # seconds after the first results
LASTS = float(os.environ.get("LASTS", "inf"))  # seconds from then on, or until Ctrl-C
HOST = os.environ.get("HOST")  # which of them an agent stands for

EVERY = "250ms"
RACKS = {"rack-1": ["host-1", "host-2", "host-3", "host-4"]}
RACKS["rack-2"] = ["host-5", "host-6", "host-7", "host-8"]
RACK_OF = {host: rack for rack, hosts in RACKS.items() for host in hosts}
THRASHES = "host-6"
PAGED = 100e6  # bytes in a quarter of a second
SIGN = OUT / "thrashing"  # while this file is there, that host does


def measure(record):
    """The load of a host: percent of its CPU, and a point for every MB it swaps in a second."""
    swapped = record["swapped_in"] + record["swapped_out"]
    if record["host"] == THRASHES and SIGN.exists():
        swapped += PAGED
    load = record["cpu"] + 4 * swapped / 1e6
    host = record["host"]
    return {"centre": "dc", "rack": RACK_OF[host], "host": host, "load": load, "square": load**2}


def compare(row):
    """A host of the last 20 s beside all others of the last 120 s, from sums of both."""
    others = row["n_centre"] - row["n"]
    if others < 1:
        return None
    mean = (row["total_centre"] - row["total"]) / others
    spread = max(0.0, (row["squares_centre"] - row["squares"]) / others - mean**2) ** 0.5
    return {
        "host": row["host"],
        "rack": row["rack"],
        "load": round(row["recent"], 3),
        "others": round(mean, 3),
        "deviation": round(spread, 3),
        "outlier": row["recent"] > mean + 2 * spread,
        "fidelity": row["fidelity"],
    }


SUMS = {"n": ms.sum("n"), "total": ms.sum("total"), "squares": ms.sum("squares")}
MEASURED = "centre string, rack string, host string, load double, square double"
COMPARED = "host string, rack string, load double, others double, deviation double"
COMPARED += ", outlier boolean, fidelity double"

flow = ms.Flow("monitoring")
stats = flow.source(
    ms.Collector(
        f"127.0.0.1:{PORT}",
        reads=ms.HostStats(EVERY, host=HOST),
        agents=list(RACK_OF),
        boundary=EVERY,
    ),
    name="stats",
)
# A host that is silent is not waited for: the others are watched all the same.
quick = ms.evict(failure_after="3s")
by_host = stats.map(measure, schema=MEASURED).named("load").key_by("centre", "rack", "host")
recent = by_host.window(ms.sliding("20s", EVERY), close=quick).agg(recent=ms.mean("load"))
hosts = (
    by_host.window(ms.sliding("120s", EVERY), close=quick)
    .agg(n=ms.count(), total=ms.sum("load"), squares=ms.sum("square"))
    .named("hosts over 120 s")
)
racks = hosts.key_by("centre", "rack").window(ms.tumbling(EVERY)).agg(**SUMS).named("racks")
centre = racks.key_by("centre").window(ms.tumbling(EVERY)).agg(**SUMS).named("data centre")

same = {"between": ("0s", "0s")}  # results of windows that end at the same time
keys = ["centre", "rack", "host"]
both = recent.named("hosts over 20 s").join(hosts, on=keys, **same)
compared = (
    both.join(centre, on="centre", suffix="_centre", **same)
    .map(compare, schema=COMPARED)
    .named("beside all others")
)
tentative = compared.where("outlier").named("tentative")
alerts = (
    tentative.key_by("host")
    .window(ms.sliding("30s", EVERY))
    .agg(tentative=ms.count(), load=ms.last("load"))
    .where("tentative >= 10")
    .key_by("host")
    .agg(emit="delta", since=ms.min("window_end"), until=ms.max("window_end"), load=ms.last("load"))
    .named("alerts")
)
alerts.view("alerts")  # on the live page, as is the newest of every host
compared.changes(key="host").view("hosts")


def tell(row):
    """Say an alert when it begins."""
    if row["op"] == "+":
        after = time.time() - SIGN.stat().st_mtime if SIGN.exists() else 0.0
        told = f"ALERT: {row['host']} has a load of {row['load']:,.0f}"
        print(f"{told}, {after:.1f} s after the paging began", flush=True)


alerts.sink(ms.Call(tell), name="told")


# -- starting all of it ---------------------------------------------------------------------------


def start_agents():
    """A relay per rack and an agent per host, each a process as on a machine of its own."""

    def started(name, to, *more, **surroundings):
        command = [sys.executable, "-m", "millstream", "agent", __file__, "--name", name]
        place = OUT / "agents" / name
        command += ["--to", f"127.0.0.1:{to}", "--directory", str(place), *more]
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{place}.log", "a") as log:
            return subprocess.Popen(command, env={**os.environ, **surroundings}, stderr=log)

    for number, (rack, hosts) in enumerate(RACKS.items(), PORT + 1):
        below = ["--listen", f"127.0.0.1:{number}", "--children", str(len(hosts))]
        yield started(rack, PORT, "--relay", *below)
        for host in hosts:
            yield started(host, number, HOST=host)


def watch(handle):
    """Let one host thrash once all are watched, and wait for the end."""
    while handle.running and not handle.progress.windows:
        time.sleep(0.1)
    print(f"all are watched; {THRASHES} begins to thrash in {THRASHING:.0f} s", flush=True)
    begins = time.monotonic() + THRASHING
    while handle.running and time.monotonic() < begins + LASTS:
        if time.monotonic() >= begins and not SIGN.exists():
            SIGN.touch()
        time.sleep(0.1)


if __name__ == "__main__":
    SIGN.unlink(missing_ok=True)
    processes = list(start_agents())
    handle = flow.start(OUT / "monitoring", serve=int(os.environ.get("SERVE", "8321")))
    print(f"look at {handle.url}", flush=True)
    try:
        watch(handle)
    except KeyboardInterrupt:
        print("ending")
    finally:
        for process in processes:
            process.terminate()
        handle.stop()
        for process in processes:
            process.wait()
