"""Distributed grep: how often what a regular expression matches occurs in text files.

    millstream run examples/grep.py
    PATTERN='err(or|no)' TEXTS='logs/*.log' OUT=found millstream run examples/grep.py

`map` gives (what matched, 1) for every occurrence in a line; `combine` and `reduce` add up. With
`uncombine` the same job slides over a window in time, too: what leaves it is taken away again.
Without TEXTS it invents some first, in `texts/`.
"""

import os
import random
import re
from pathlib import Path

import millstream as ms

PATTERN = os.environ.get("PATTERN", r"mills?\b|stream|w[aeiou]ter")
TEXTS = os.environ.get("TEXTS", "texts/*.txt")
OUT = os.environ.get("OUT", "out/grep")


def invent_texts(folder: Path, files: int = 4, lines: int = 500) -> None:
    """Lines of a few words, over and over."""
    dice = random.Random(29)
    words = ("the", "mill", "mills", "milling", "stream", "upstream", "water", "wheel", "winter")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = [" ".join(dice.choices(words, k=dice.randint(0, 9))) for _ in range(lines)]
        (folder / f"{number}.txt").write_text("\n".join(text) + "\n")


class Grep(ms.MapReduce):
    """Occurrences of a regular expression, by what was matched."""

    def __init__(self, pattern=PATTERN):
        self.pattern = re.compile(pattern)

    def map(self, key, value, ts):
        for found in self.pattern.finditer(value):
            yield found[0], 1

    def combine(self, key, values):
        return sum(values)

    def uncombine(self, key, total, expired):
        return total - expired

    def reduce(self, key, values, window):
        yield key, sum(values)


if "TEXTS" not in os.environ and not Path("texts").exists():
    invent_texts(Path("texts"))

flow = ms.Flow("grep")
(
    flow.source(ms.Files(TEXTS, format="text"), name="texts")
    .map_reduce(Grep(PATTERN))
    .named("matches")
    .select("key AS match", "value AS n")
    .named("counts")
    .sink(ms.Jsonl(OUT), name="found")
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/grep")
