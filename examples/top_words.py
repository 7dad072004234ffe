"""The hundred most frequent words, with a ranking long before all text was read (HOP's figure 4).

millstream run examples/top_words.py --snapshots 5%,10%,25%,50%
python examples/top_words.py

Two jobs in a row: words are counted, and the counts are ranked. Both are looked at while the files
are still being read: each place has its word, an estimate with bounds, and whether it is settled,
so that nobody can take it any more. The second way also says when the first places were right. The
text is invented: words as frequent as those of a language, chapters with words of their own.
"""

import os
from pathlib import Path

import numpy as np

import millstream as ms

TEXT = Path(os.environ.get("TEXT", "top_words"))
CHAPTERS = int(os.environ.get("CHAPTERS", "40"))
LINES = int(os.environ.get("CHAPTER_LINES", "4000"))  # of a chapter
OUT = os.environ.get("OUT", "out/top_words")
K = int(os.environ.get("K", "100"))
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def invent(folder: Path) -> None:
    """Chapters, the same every time."""
    chance = np.random.default_rng(3)
    syllables = ["ka", "lo", "mi", "re", "su", "ta", "no", "vi", "en", "or"]
    words = np.array([a + b + c for a in syllables for b in syllables for c in ["", *syllables]])
    chance.shuffle(words)
    share = 1 / np.arange(1, len(words) + 1) ** 1.05
    folder.mkdir(parents=True)
    for chapter in range(CHAPTERS):
        own = share * chance.lognormal(0, 0.5, len(words))  # what a chapter is about
        text = words[chance.choice(len(words), (LINES, 12), p=own / own.sum())]
        lines = [" ".join(line) for line in text.tolist()]
        (folder / f"chapter-{chapter + 1:02}.txt").write_text("\n".join(lines) + "\n")


if not TEXT.exists():
    invent(TEXT)


def split(row: dict) -> list[dict]:
    """The words of a line."""
    return [{"word": word} for word in row["value"].split()]


def build(out: str) -> ms.Flow:
    """Words, counted and ranked."""
    flow = ms.Flow("top_words")
    lines = flow.source(ms.Files(TEXT, format="text"), name="lines")
    counts = lines.flat_map(split).key_by("word").agg(n=ms.count()).named("counts")
    counts.key_by().agg(top=ms.top_k("word", K, by="n")).named("top").sink(ms.Jsonl(out))
    return flow


flow = build(OUT)


def right(snapshot: ms.Snapshot, last: ms.Snapshot) -> int:
    """How many places from the first on have the word they have in the end."""
    words = [row["word"] for row in snapshot.table.to_pylist()]
    exact = [row["word"] for row in last.table.to_pylist()]
    wrong = [place for place, pair in enumerate(zip(words, exact, strict=True)) if len({*pair}) > 1]
    return wrong[0] if wrong else len(exact)


if __name__ == "__main__":
    found = list(build(f"{OUT}_looked").snapshots(SHARES, checkpoint="ck/top_words"))
    for snapshot in found:
        settled = sum(row["settled"] for row in snapshot.table.to_pylist())
        print(
            f"{snapshot.progress:4.0%} read after {snapshot.elapsed:5.1f} s: {settled} places are "
            f"settled, the first {right(snapshot, found[-1])} are right"
        )
