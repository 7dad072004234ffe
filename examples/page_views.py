"""Page views per language and hour of the day, with answers while the files are still being read.

millstream run examples/page_views.py --snapshots 5%,10%,25%,50% --step languages
python examples/page_views.py

The second draws error and interval against time and the share of the input into page_views.png. A
language is all over the files, so its views are soon known well. A language at one hour of the day
lies in few blocks: its bounds say how little that tells. The files are invented: one for each hour
of some days, sorted by language and page as those of Wikipedia are, with few languages and pages
that have most of the views.
"""

import os
from pathlib import Path

import numpy as np

import millstream as ms

VIEWS = Path(os.environ.get("VIEWS", "page_views"))
DAYS = int(os.environ.get("DAYS", "7"))
PAGES = int(os.environ.get("PAGES", "6000"))  # lines of a file
OUT = os.environ.get("OUT", "out/page_views")
LANGUAGES = [
    "en",
    "es",
    "ja",
    "de",
    "ru",
    "fr",
    "it",
    "zh",
    "pt",
    "pl",
    "ar",
    "tr",
    "nl",
    "id",
    "cs",
    "sv",
    "he",
    "uk",
    "fa",
    "ko",
]
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def invent(folder: Path) -> None:
    """Hourly files, the same every time."""
    chance = np.random.default_rng(5)
    share = 1 / np.arange(1, len(LANGUAGES) + 1) ** 1.2
    folder.mkdir(parents=True)
    for number in range(DAYS * 24):
        day, hour = divmod(number, 24)
        many = int(PAGES * (1 + 0.5 * np.sin((hour - 8) / 24 * 2 * np.pi)))
        language = np.sort(chance.choice(len(LANGUAGES), many, p=share / share.sum()))
        page = chance.integers(0, 100_000, many)
        views = np.minimum(chance.zipf(1.8, many), 50_000)
        order = np.lexsort((page, language))
        lines = ["language,hour,page,views"]
        for i in order.tolist():
            lines.append(f"{LANGUAGES[language[i]]},{hour},page-{page[i]},{views[i]}")
        (folder / f"day-{day + 1:02}-{hour:02}.csv").write_text("\n".join(lines) + "\n")


if not VIEWS.exists():
    invent(VIEWS)


def build(out: str) -> ms.Flow:
    """Pages with views, and these, per language, and per language and hour of the day."""
    flow = ms.Flow("page_views")
    views = flow.source(ms.Files(VIEWS, format="csv"), name="views")
    counted = {"pages": ms.count(), "views": ms.sum("views")}
    languages = views.key_by("language").agg(**counted).named("languages")
    hours = views.key_by("language", "hour").agg(**counted).named("hours")
    languages.sink(ms.Jsonl(f"{out}/languages"))
    hours.sink(ms.Jsonl(f"{out}/hours"))
    return flow


flow = build(OUT)


def by_group(snapshot: ms.Snapshot) -> dict[tuple, dict]:
    """Rows by language (and hour), those that have bounds."""
    rows = snapshot.table.to_pylist()
    return {(r["language"], r.get("hour")): r for r in rows if r["pages_upper"] is not None}


def draw(found: dict[str, list[ms.Snapshot]], picture: str, language: str = "en") -> None:
    """One language with its bounds against what was read, and errors of all groups against time."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    some = [(s.progress, by_group(s).get((language, None))) for s in found["languages"][:-1]]
    shown = [(100 * at, r["pages_lower"], r["pages"], r["pages_upper"]) for at, r in some if r]
    shares, lower, value, upper = np.array(shown).T
    left.fill_between(shares, lower, upper, alpha=0.25, label="between the bounds (95 %)")
    left.plot(shares, value, marker=".", label="estimate")
    exact = by_group(found["languages"][-1])[language, None]["pages"]
    left.axhline(exact, color="black", lw=1, ls="--", label="exact answer")
    left.set(title=f"pages with views in {language!r}", xlabel="% read", ylim=(0, None))
    for step, style in (("languages", "-"), ("hours", ":")):
        last = {key: row["pages"] for key, row in by_group(found[step][-1]).items()}
        wide, error, seconds = [], [], []
        for snapshot in found[step][:-1]:
            rows = by_group(snapshot)
            far = [(r["pages_upper"] - r["pages_lower"]) / 2 / last[k] for k, r in rows.items()]
            off = [abs(r["pages"] - last[k]) / last[k] for k, r in rows.items()]
            if rows:
                seconds.append(snapshot.elapsed)
                wide.append(100 * np.median(far))
                error.append(100 * np.median(off))
        right.plot(seconds, wide, style, color="C0", marker=".", label=f"half the interval, {step}")
        right.plot(seconds, error, style, color="C1", marker=".", label=f"true error, {step}")
    right.set(title="median of all groups", yscale="log")
    right.set(xlabel="seconds since the start", ylabel="% of the answer")
    left.legend()
    right.legend(fontsize="small")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    found: dict[str, list[ms.Snapshot]] = {}
    for step in ("languages", "hours"):
        looked = build(f"{OUT}_{step}")
        for snapshot in looked.snapshots(SHARES, step=step, checkpoint=f"ck/page_views_{step}"):
            found.setdefault(step, []).append(snapshot)
            print(f"{step}: {snapshot.progress:.0%} read, {len(snapshot.table)} groups")
    draw(found, "page_views.png")
