"""`millstream reshard`, in a process of its own."""

from __future__ import annotations

from millstream.cli.loading import load_application
from millstream.testing import run_in_process
from tests.cli.conftest import Here

STEPS = """
def add(event, slate, ctx):
    slate["n"] = slate.get("n", 0) + event.value["qty"]


trades.key_by("symbol").update(add, name="volume").sink(ms.Jsonl("out"))
(trades.key_by("symbol", partition=lambda key: ord(key)).update(add, name="parted")
       .sink(ms.Jsonl("out2")))
"""


def test_the_number_of_shards_is_changed_and_told(here: Here) -> None:
    app = here.app(STEPS.replace("trades.csv", str(here.path / "trades.csv")))
    text = (here.path / app).read_text().replace('"trades.csv"', f'"{here.path}/trades.csv"')
    for name in ("out2", "out"):
        text = text.replace(f'"{name}"', f'"{here.path}/{name}"')
    (here.path / app).write_text(text)
    run_in_process(load_application(here.path / app).flow, here.path / "ck", shards=8)
    done = here.run("reshard", "ck", "--shards", "3")
    assert (done.code, done.out) == (2, "")
    assert "keys of 'parted' lie where a function of the program says" in done.err
    done = here.run("reshard", "ck", "--shards", "3", "--app", app)
    assert done.code == 0, done.err
    first, second, last = done.out.splitlines()
    assert (first, second) == ("  volume: 2 rows", "  parted: 2 rows")
    assert last.startswith("ck has 3 shards now, 8 before, committed as batch ")
    done = here.run("slates", "get", "volume", "A", "--checkpoint", "ck")
    assert '"n":' in done.out.replace(" ", ""), done.err
    assert here.run("reshard", "ck", "--shards", "3").out == "ck has 3 shards already\n"
