"""Every mistake a new user can make: one message that says what to do, no stack trace, a code."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def told(result: Any, code: int, *parts: str) -> str:
    """One message on stderr with these parts in it, and nothing of Python or Java."""
    assert result.code == code, result.err + result.out
    lines = [line for line in result.err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("error: "), result.err
    for part in parts:
        assert part in result.err, f"{part!r} not in {result.err}"
    assert "Traceback" not in result.err and "java." not in result.err
    assert "\x1b" not in result.err + result.out
    return lines[0]


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """Surroundings in which starting a JVM fails the test: `java` leaves a trace."""
    folder = tmp_path / "java" / "bin"
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit 0\n'
        f"touch {tmp_path}/jvm-was-started\nexit 1\n"
    )
    java.chmod(0o755)
    return {"JAVA_HOME": str(folder.parent)}


# -- found before Spark starts ------------------------------------------------------------------

MISTAKES = {
    "where": ('trades.where("prise > 0").sink(ms.Jsonl("out"))', ["prise", "price"]),
    "select": ('trades.select("symbl").sink(ms.Jsonl("out"))', ["symbl", "symbol"]),
    "key_by": (
        'trades.key_by("sym").window(ms.tumbling("1m")).agg(n=ms.count()).sink(ms.Jsonl("out"))',
        ["there is no column 'sym'", "columns: ts, symbol, price, qty"],
    ),
    "agg": (
        'trades.key_by("symbol").window(ms.tumbling("1m")).agg(a=ms.mean("prize"))'
        '.sink(ms.Jsonl("out"))',
        ["a=mean(prize)", "did you mean 'price'?"],
    ),
    "not a number": (
        'trades.key_by("qty").window(ms.tumbling("1m")).agg(a=ms.mean("symbol"))'
        '.sink(ms.Jsonl("out"))',
        ["needs numbers", "CAST(symbol AS DOUBLE)"],
    ),
    "duration": (
        'trades.key_by("symbol").window(ms.tumbling("1 fortnight"))',
        ["app.py, line 6", "'1 fortnight' is not a duration", '"5m"'],
    ),
    "slide": (
        'trades.key_by("symbol").window(ms.sliding("1m", "2m"))',
        ["the slide is longer than the size", "hopping"],
    ),
    "path": (
        'flow.source(ms.Files("nowhere.csv")).sink(ms.Jsonl("out"))',
        ["nowhere.csv does not exist", "give an existing file"],
    ),
    "schema": (
        'flow.source(ms.Files("trades.csv", schema="ts timestmp")).sink(ms.Jsonl("out"))',
        ["timestmp"],
    ),
    "no sink": ('trades.where("price > 0")', ["has no sink", ".sink("]),
    "sink is a file": (
        'trades.sink(ms.Jsonl("trades.csv"))',
        ["is a file", "writes into a directory"],
    ),
    "runs itself": ('trades.sink(ms.Jsonl("out"))\nflow.run()', ['if __name__ == "__main__":']),
    "one sink twice": (
        'trades.sink(ms.Jsonl("out"))\ntrades.sink(ms.Jsonl("out"))',
        ["both write to out", "a directory of its own"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_flow(here: Any, no_java: dict[str, str], name: str) -> None:
    steps, parts = MISTAKES[name]
    app = here.app(steps)
    told(here.run("run", app, env=no_java), 2, *parts)  # Spark would have failed to start
    assert not (here.path / "jvm-was-started").exists()
    assert not (here.path / "out").exists()


def test_plan_finds_the_same_mistakes(here: Any) -> None:
    told(here.run("plan", here.app(MISTAKES["agg"][0])), 2, "did you mean 'price'?")


def test_app_does_not_exist(here: Any) -> None:
    told(here.run("run", "nope.py"), 2, "there is no file nope.py")
    told(here.run("run", "."), 2, "is a directory")


def test_app_that_is_data(here: Any) -> None:
    here.file("in.csv", "ts,k\n2026-01-01,a\n")
    told(here.run("run", "in.csv"), 2, "in.csv is data by its name", 'ms.Files("in.csv")')


def test_app_without_a_flow(here: Any) -> None:
    here.file("app.py", "import millstream as ms\n")
    told(here.run("run", "app.py"), 2, "has no flow at module level", 'flow = ms.Flow("name")')


def test_app_with_several_flows(here: Any) -> None:
    here.file("app.py", "import millstream as ms\na = ms.Flow('x')\nb = ms.Flow('y')\n")
    told(here.run("run", "app.py"), 2, "a (flow 'x'), b (flow 'y')", "--flow NAME")
    told(here.run("run", "app.py", "--flow", "z"), 2, "has no flow 'z'", "a (flow 'x')")


def test_the_app_itself_is_wrong(here: Any) -> None:
    here.file("beside.py", "def divide(x):\n    return x / 0\n")
    here.file("app.py", "import beside\n\nbeside.divide(1)\n")
    result = here.run("run", "app.py")
    assert result.code == 2
    lines = result.err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "ZeroDivisionError: division by zero" in result.err
    assert [line.split(", in ")[0].split("/")[-1] for line in lines if "File" in line] == [
        'app.py", line 3',
        'beside.py", line 2',
    ]
    assert (
        lines[-1]
        == "error: app.py could not be loaded (line 3): ZeroDivisionError: division by zero"
    )


def test_syntax_error(here: Any) -> None:
    here.file("app.py", "flow = (\n")
    result = here.run("run", "app.py")
    assert result.code == 2 and "SyntaxError" in result.err and "cli" not in result.err


def test_unknown_option(here: Any) -> None:
    result = here.run("run", here.app(), "--paralelism", "2")
    assert result.code == 2 and "--paralelism" in result.err and "--parallelism" in result.err


def test_unknown_setting(here: Any) -> None:
    here.file(
        "own.py",
        """
        from app import flow, ms
        try:
            flow.run(paralelism=2)
        except ms.ConfigError as error:
            print(error)
        """,
    )
    here.app()
    result = here.call(sys.executable, "own.py")
    assert result.out == "there is no setting 'paralelism'; did you mean 'parallelism'?\n"


def test_option_out_of_range(here: Any) -> None:
    result = here.run("run", here.app(), "--dead-letter-limit", "7")
    assert result.code == 2 and "--dead-letter-limit" in result.err
    assert here.run("run", here.app(), "--shards", "0").code == 2


# -- Java and Spark -----------------------------------------------------------------------------


def test_missing_java(here: Any, tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    told(here.run("run", here.app(), env=empty), 2, "no java on the PATH", "openjdk-17")
    wrong = {"JAVA_HOME": "/nowhere"}
    told(here.run("run", here.app(), env=wrong), 2, "JAVA_HOME=/nowhere has no bin/java")


@pytest.mark.parametrize(("said", "found"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11")])
def test_old_java(here: Any, tmp_path: Path, said: str, found: str) -> None:
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
    java.chmod(0o755)
    env = {"JAVA_HOME": str(tmp_path / "old")}
    told(here.run("run", here.app(), env=env), 2, f"is {found}", "Java 17 or later")


def test_java_that_ends_at_once(here: Any, no_java: dict[str, str]) -> None:
    told(here.run("run", here.app(), env=no_java), 2, "Spark could not start", "Java ended at once")


def test_unreachable_master(here: Any, no_java: dict[str, str]) -> None:
    result = here.run("run", here.app(), "--master", "spark://127.0.0.1:1", env=no_java)
    told(result, 2, "spark://127.0.0.1:1 cannot be reached", "refused", "--master")
    told(here.run("run", "app.py", "--master", "sprak://x", env=no_java), 2, "local[*]")


# -- checkpoints --------------------------------------------------------------------------------


def test_checkpoint_under_a_file(here: Any, no_java: dict[str, str]) -> None:
    result = here.run("run", here.app(), "--checkpoint", "trades.csv/ck", env=no_java)
    told(result, 2, "trades.csv/ck cannot be written", "--checkpoint")
    result = here.run("run", "app.py", "--checkpoint", "trades.csv", env=no_java)
    told(result, 2, "is a file, not a directory")


@pytest.fixture
def mounted(tmp_path: Path) -> Any:
    """Makes small file systems, as root; they are gone afterwards."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"mounting needs root: {done.stderr.decode().strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", str(place)], check=False)


def test_read_only_checkpoint(here: Any, no_java: dict[str, str], mounted: Any) -> None:
    place = mounted("ro")
    result = here.run("run", here.app(), "--checkpoint", str(place / "ck"), env=no_java)
    told(result, 2, "cannot be written", "Read-only file system", "--checkpoint")


def test_doctor_without_a_checkpoint(here: Any) -> None:
    told(here.run("doctor", "nowhere"), 2, "there is no checkpoint at")


@pytest.mark.spark
def test_the_life_of_a_checkpoint(here: Any, no_java: dict[str, str]) -> None:
    """One good run, then everything that can be wrong with its checkpoint and its output."""
    app = here.app()
    assert here.run("run", app, "--checkpoint", "ck").code == 0
    results = sorted((here.path / "out").glob("part-*"))
    assert results
    assert here.run("doctor", "ck").code == 0

    result = here.run("run", app, "--checkpoint", "other", env=no_java)
    told(result, 2, "holds results of another checkpoint", "choose another directory")

    here.app(name="changed.py", steps=STEPS_CHANGED)
    result = here.run("run", "changed.py", "--checkpoint", "ck", env=no_java)
    told(result, 2, "the program has changed", "tumbling(1m)", "tumbling(2m)", "--checkpoint")

    result = here.run("run", app, "--checkpoint", "ck", "--shards", "3", env=no_java)
    told(result, 2, "shards; leave out shards=")

    with open(here.path / "ck" / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = here.run("run", app, "--checkpoint", "ck", env=no_java)
        told(result, 2, "is owned by pid", "--checkpoint")

    newest = max((here.path / "ck" / "manifests").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    result = here.run("run", app, "--checkpoint", "ck", env=no_java)
    told(result, 2, "is damaged", "millstream doctor")
    result = here.run("doctor", "ck")
    assert result.code == 1 and "BAD" in result.out and "DAMAGED" in result.out
    assert sorted((here.path / "out").glob("part-*")) == results


STEPS_CHANGED = """
(trades.where("price > 0").key_by("symbol").window(ms.tumbling("2m"))
       .agg(avg=ms.mean("price"), n=ms.count()).sink(ms.Jsonl("out")))
"""


# -- while running ------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.long
def test_wrong_types_and_too_many_dead_letters(here: Any) -> None:
    app = here.app(
        """
        def broken(row):
            return 7 if row["qty"] > 1 else row

        (trades.map(broken).key_by("symbol").window(ms.tumbling("1m"))
               .agg(n=ms.count()).sink(ms.Jsonl("out")))
        """
    )
    lines = (here.path / "trades.csv").read_text().splitlines()
    (here.path / "trades.csv").write_text("\n".join([lines[0], *lines[1:] * 4]) + "\n")
    result = here.run("run", app)
    told(result, 1, "dead letters, more than the limit of 1.0%", "map", "int", "dead_letter_limit")
    assert not list((here.path / "out").glob("part-*"))
    assert list((here.path / ".millstream/prices/dead").glob("rejected-*.jsonl"))

    result = here.run("run", app, "--dead-letter-limit", "1")
    assert result.code == 0, result.err
    assert "1,920 dead letters (with reasons, they are in .millstream/prices/dead)" in result.out


@pytest.mark.spark
@pytest.mark.long
def test_socket_refused(here: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    here.file(
        "app.py",
        f"""
        import millstream as ms
        flow = ms.Flow("lines")
        flow.source(ms.Socket("127.0.0.1", {port}, reconnect=False)).sink(ms.Jsonl("out"))
        """,
    )
    told(here.run("run", "app.py"), 1, f"127.0.0.1:{port} cannot be reached", "is the server")


@pytest.mark.spark
@pytest.mark.long
def test_full_disk_and_on_with_more_room(here: Any, mounted: Any) -> None:
    place = mounted("size=256k")
    here.file(
        "own.py",
        f"""
        import subprocess
        from app import flow, ms
        try:
            flow.run("ck", disk_full_wait=0.5)
        except ms.RunError as error:
            print("error:", error)
        subprocess.run(["mount", "-o", "remount,size=64m", "{place}"], check=True)
        print(flow.run("ck").rows, "records")
        """,
    )
    here.app(
        f"""
        def wide(row):
            return {{**row, "text": "{{:01000d}}".format(row["qty"])}}

        trades.map(wide).sink(ms.Jsonl("{place}/out"))
        """
    )
    result = here.call(sys.executable, "own.py")
    first, second = result.out.splitlines()
    assert "the disk is full" in first and "nothing is lost: free some space" in first
    assert second == "600 records" and result.err == ""
    written = b"".join(p.read_bytes() for p in (place / "out").glob("part-*"))
    assert written.count(b"\n") == 600
