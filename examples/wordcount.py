"""Count the words of text files: the classic MapReduce job, in a batch.

millstream run examples/wordcount.py
TEXTS='books/*.txt' OUT=counts millstream run examples/wordcount.py --checkpoint ck/words
"""

import os
import re
from pathlib import Path

import millstream as ms

HERE = Path(__file__).parent
TEXTS = os.environ.get("TEXTS", str(HERE / "*.py"))
OUT = os.environ.get("OUT", "out/wordcount")


class WordCount(ms.MapReduce):
    """`map` gives (word, 1); `combine` adds up on the way, `reduce` at the end."""

    def map(self, key, value, ts):
        for word in re.findall(r"[a-z]+", value.lower()):
            yield word, 1

    def combine(self, key, values):
        return sum(values)

    def reduce(self, key, values, window):
        yield key, sum(values)


flow = ms.Flow("wordcount")
(
    flow.source(ms.Files(TEXTS, format="text"))
    .map_reduce(WordCount())
    .select("key AS word", "value AS n")
    .sink(ms.Jsonl(OUT))
)

if __name__ == "__main__":
    flow.run(checkpoint="ck/wordcount")
