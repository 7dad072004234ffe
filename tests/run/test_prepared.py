"""The archive of Spark's classes: made once, used by every start, never taken from strangers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.run.spark import archive

PREPARE_AND_USE = """
import sys
from pathlib import Path
from millstream.run.spark import archive
from millstream.run.spark import preparing
archive.places = preparing.places = lambda: iter([Path(sys.argv[1])])
print(preparing.prepare())
from millstream.run.spark.session import close_session, open_session
from millstream.settings import Settings
context, _ = open_session("next", Settings())
print(context.parallelize([1, 2], 2).sum())
java = context._gateway.proc.pid
print("spark.jsa" in Path(f"/proc/{java}/maps").read_text())
close_session(context)
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found = [tmp_path / "installation", tmp_path / "cache"]
    for place in found:
        place.mkdir()
    monkeypatch.setattr(archive, "places", lambda: iter(found))
    return found


def test_it_is_used_where_it_is_found(places: list[Path]) -> None:
    assert archive.archive_options("") == ""
    (places[1] / archive.NAME).touch(0o444)
    assert str(places[1] / archive.NAME) in archive.archive_options("-Xmx1g")
    (places[0] / archive.NAME).touch(0o444)
    assert str(places[0] / archive.NAME) in archive.archive_options("")


@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=x", "-XX:ArchiveX=y"])
def test_what_the_user_says_about_archives_comes_first(places: list[Path], given: str) -> None:
    (places[0] / archive.NAME).touch(0o444)
    assert archive.archive_options(given) == ""


def test_what_others_could_have_written_is_not_used(places: list[Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.touch(0o444)
    (places[0] / archive.NAME).symlink_to(mine)
    assert archive.archive_options("") == ""
    open_to_all = places[1] / archive.NAME
    open_to_all.touch()
    open_to_all.chmod(0o666)
    assert archive.archive_options("") == ""


@pytest.mark.spark
def test_what_setting_up_made_is_used(spark: Any) -> None:
    if not archive.archive_options(""):
        pytest.skip("there is no archive: `millstream prepare` makes one")
    assert "spark.jsa" in Path(f"/proc/{spark._gateway.proc.pid}/maps").read_text()


@pytest.mark.long  # half a minute; `make setup` does the first half of it anyway
def test_prepared_and_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE_AND_USE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / archive.NAME), "3", "True"]
    assert [path.name for path in tmp_path.iterdir()] == [archive.NAME]
