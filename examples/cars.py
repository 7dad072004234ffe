"""Speeding cars, those of them on highway I-65, and makes with more than two of these.

    millstream run examples/cars.py
    SPEEDS=speeds.jsonl PLACES=places.jsonl OUT=fast millstream run examples/cars.py

The three queries of the M3 paper. Cars report their speed, some of them often and some rarely, and
beacons beside the roads report which car passes. A car is speeding from the report that says so
until one that does not: `+` when it begins, `u` when it gets faster or slower, `-` when it is no
more. It is on the list of I-65 as long as it is speeding and was seen there last, and its make as
long as more than two of its cars are. Without SPEEDS and PLACES it invents an hour of both.
"""

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

SPEEDS = Path(os.environ.get("SPEEDS", "speeds.jsonl"))
PLACES = Path(os.environ.get("PLACES", "places.jsonl"))
OUT = os.environ.get("OUT", "out/cars")
ROADS = ("I-65", "US-52", "SR-26")
MAKES = ("A", "B", "C", "D")


def invent(speeds: Path, places: Path, cars: int = 40, minutes: int = 60) -> None:
    """Cars that speed up and slow down and now and then turn off; each has a pace of its own."""
    dice = random.Random(65)
    start = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    said, seen = [], []
    for car in range(1, cars + 1):
        make, pace = MAKES[car % len(MAKES)], dice.choice((5, 20, 90))
        speed, road, second = dice.randint(35, 65), dice.choice(ROADS), dice.randint(0, 60)
        while second < minutes * 60:
            at = (start + timedelta(seconds=second)).isoformat()
            said.append({"at": at, "car": car, "speed": speed})
            if dice.random() < 0.2 or not seen or seen[-1]["car"] != car:
                seen.append({"at": at, "car": car, "make": make, "road": road})
                road = dice.choice(ROADS)
            speed = min(90, max(20, speed + dice.randint(-8, 8)))
            second += dice.randint(1, 2 * pace)
    for path, reports in ((speeds, said), (places, seen)):
        path.parent.mkdir(parents=True, exist_ok=True)
        reports.sort(key=lambda report: report["at"])
        path.write_text("".join(json.dumps(report) + "\n" for report in reports))


def speeding_cars(speeds):
    """Cars that exceed the speed limit."""
    return speeds.changes(key="car").where("speed > 50").select("car", "speed")


def on_i65(speeding, places):
    """Those of them that are on highway I-65."""
    there = places.changes(key="car").where("road = 'I-65'").select("car", "make")
    return speeding.join(there, on="car").select("car", "make")


def many_of_a_make(cars):
    """Makes of which more than two cars are on a list."""
    return cars.key_by("make").agg(cars=ms.count()).where("cars > 2")


if not SPEEDS.exists() or not PLACES.exists():
    invent(SPEEDS, PLACES)

flow = ms.Flow("cars")
speeds = flow.source(ms.Files(SPEEDS, format="json", time="at", lateness="5s"), name="speeds")
places = flow.source(ms.Files(PLACES, format="json", time="at", lateness="5s"), name="places")
speeding = speeding_cars(speeds).named("speeding")
on_road = on_i65(speeding, places).named("on I-65")
speeding.sink(ms.Jsonl(f"{OUT}/speeding"), name="all speeding")
on_road.sink(ms.Jsonl(f"{OUT}/on_i65"), name="speeding on I-65")
many_of_a_make(on_road).named("makes").sink(ms.Jsonl(f"{OUT}/makes"), name="many of a make")
