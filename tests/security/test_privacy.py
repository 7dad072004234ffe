"""What others may not see or make us do: scratch files, terminals, configurations, Redis, links."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.api.config.trust import untrusted
from millstream.cli import complain, running
from millstream.cli.commands import app
from millstream.cli.loading import load_application
from millstream.io.mirrors import Address
from millstream.run.outputs.publishing import publish, stage_delivery
from millstream.run.planning import plan_flow
from millstream.run.sources.files.listing import list_files, look_around
from millstream.showing import visible, visible_lines
from millstream.state.manifests import Manifest
from millstream.state.storage import open_storage

# -- the terminal ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("one\ntwo\r", r"one\ntwo\r"),
        ("\u202eevil\x9b", r"\u202eevil\x9b"),
        ("\ud800", r"\ud800"),
        ("täglich 東", "täglich 東"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert "\x1b" not in visible_lines(text)
    assert visible_lines("a\nb") == "a\nb"


def test_the_console_obeys_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"na\x1bme": ["\x1b]0;owned\x07", "a\nb"]})
    output = stage_delivery(open_storage(tmp_path), 4, "shown", table)
    publish(Manifest(4, outputs=[output]), {"shown": ms.Console()}, open_storage(tmp_path))
    text = capsys.readouterr().out
    assert "\x1b]" not in text
    assert "\x07" not in text
    assert r"\x1b]0;owned\x07" in text
    assert r"a\nb" in text


def test_errors_obey_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    complain("bad value \x1b[31m\x07 of a file")
    assert r"bad value \x1b[31m\x07 of a file" in capsys.readouterr().err


# -- configurations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "spark.driver.extraJavaOptions",
        "spark.driver.extraClassPath",
        "spark.executorEnv.LD_PRELOAD",
        "spark.plugins",
        "spark.jars.packages",
        "spark.python.daemon.module",
        "spark.executor.resource.gpu.discoveryScript",
        "spark.local.dir",
    ],
)
def test_a_file_sets_no_property_that_runs_code(name: str) -> None:
    assert untrusted({"spark.driver.memory": "4g", name: "x"}) == name


def test_plain_properties_have_plain_values() -> None:
    assert untrusted({"spark.driver.memory": "4g", "spark.network.timeout": "120s"}) is None
    assert untrusted({"spark.driver.memory": "1g -XX:OnOutOfMemoryError=sh"}) is not None


def test_the_command_line_asks_for_trust(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"ts": 1, "n": 1}\n')
    file = tmp_path / "app.toml"
    file.write_text(
        f"""
[run]
spark = {{ "spark.driver.extraJavaOptions" = "-XX:OnError=touch" }}
[source.in]
kind = "files"
path = "{tmp_path / "in.jsonl"}"
time = "ts"
[sink.out]
from = "in"
kind = "console"
"""
    )
    with pytest.raises(ms.ConfigError, match=r"app\.toml:3: .*--trust-config"):
        load_application(file).check_trust()
    command = [sys.executable, "-c", "from millstream.cli import main; main()", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    assert "--trust-config" in done.stderr
    assert not (tmp_path / ".millstream").exists()


@pytest.mark.parametrize("master", ["spark://elsewhere:7077", "k8s://elsewhere", "yarn"])
def test_a_file_sends_no_functions_elsewhere(tmp_path: Path, master: str) -> None:
    """Who is the master gets what the flow runs, and gives back what the driver unpickles."""
    (tmp_path / "in.jsonl").write_text('{"ts": 1, "n": 1}\n')
    file = tmp_path / "app.toml"

    def write(where: str) -> None:
        source = f'[source.in]\nkind = "files"\npath = "{tmp_path / "in.jsonl"}"\ntime = "ts"\n'
        sink = '[sink.out]\nfrom = "in"\nkind = "console"\n'
        file.write_text(f'[run]\nmaster = "{where}"\n{source}{sink}')

    write(master)
    with pytest.raises(ms.ConfigError, match=r"app\.toml:2: .*--trust-config"):
        load_application(file).check_trust()
    write("local[2]")
    load_application(file).check_trust()


REDIS = """
[source.in]
kind = "files"
path = "in.jsonl"
time = "ts"
[sink.out]
from = "in"
kind = "redis"
key = "n"
prefix = "p"
url = "redis://elsewhere.example:6379"
password_env = "NAME"
"""
HTTP = """
[source.in]
kind = "http"
port = 8401
schema = "n bigint"
token_env = "NAME"
[sink.out]
from = "in"
kind = "console"
"""
POSTGRES = """
[source.in]
kind = "files"
path = "in.jsonl"
schema = "ts bigint, n bigint"
[sink.out]
from = "in"
kind = "postgres"
url = "postgresql://u@h/x"
table = "t"
password_env = "NAME"
"""
COLLECTOR = """
[source.in]
kind = "collector"
address = "127.0.0.1:9410"
reads = { kind = "files", path = "in.jsonl", format = "json", schema = "n bigint", time = "n" }
agents = ["a"]
token_env = "NAME"
[sink.out]
from = "in"
kind = "console"
"""
SQL = """
CREATE STREAM s (n BIGINT) WITH (source = 'http', port = 8401, token_env = 'NAME');
SELECT n FROM s;
"""


@pytest.mark.parametrize(
    ("file", "text", "own"),
    [
        ("app.toml", REDIS, "MILLSTREAM_REDIS_PASSWORD_2"),
        ("app.toml", POSTGRES, "MILLSTREAM_POSTGRES_REPORT"),
        ("app.toml", HTTP, "MILLSTREAM_INPUT_ORDERS"),
        ("app.toml", COLLECTOR, "MILLSTREAM_AGENT_ORDERS"),
        ("app.sql", SQL, "MILLSTREAM_INPUT_ORDERS"),
    ],
)
@pytest.mark.parametrize("foreign", ["AWS_SECRET_ACCESS_KEY", "MILLSTREAM_TOKEN", "PATH"])
def test_a_file_takes_no_secrets_that_are_not_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, own: str, foreign: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"ts": 1, "n": 1}\n')
    path = tmp_path / file
    path.write_text(text.replace("NAME", own))
    load_application(path).check_trust()
    path.write_text(text.replace("NAME", foreign))
    with pytest.raises(ms.ConfigError, match=rf"{file}.*_env: '{foreign}'.*--trust-config"):
        load_application(path).check_trust()
    commands = [["run", file], ["agent", file, "--to", "127.0.0.1:9410", "--name", "a"]]
    commands += [["sql", file]] if file == "app.sql" else []
    for command in commands:
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, ms.ConfigError) and foreign in str(done.exception)
    assert not (tmp_path / ".millstream").exists()


def test_a_file_that_is_loaded_again_is_not_trusted_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"ts": 1, "n": 1}\n')
    loads: list[Any] = []
    monkeypatch.setattr(running, "run_flow", lambda *a, load, **b: loads.append(load))
    for file, text in (("app.toml", HTTP), ("app.sql", SQL)):
        (tmp_path / file).write_text(text.replace("NAME", "MILLSTREAM_INPUT_TOKEN"))
        for command in ("run", "sql") if file == "app.sql" else ("run",):
            for options in ([], ["--trust-config"]):
                done = CliRunner().invoke(app, [command, file, *options])
                assert done.exit_code == 0, done.exception
        (tmp_path / file).write_text(text.replace("NAME", "HOME"))
    for plain, trusting in zip(loads[::2], loads[1::2], strict=True):
        with pytest.raises(ms.ConfigError, match="'HOME' may be a secret"):
            plain()
        trusting()
    assert len(loads) == 6


# -- Redis ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "secret", ["8675/309", "8675#309", "8675?x=309", "a@8675/309", "pw/309", "8675#", "309/@8675"]
)
@pytest.mark.parametrize("scheme", ["redis://", "rediss://", "unix://"])
@pytest.mark.parametrize("user", ["", "user"])
def test_a_password_is_never_shown(secret: str, scheme: str, user: str) -> None:
    tail = "/run/redis.sock" if scheme == "unix://" else "host:6379/0"
    try:
        address = Address.parse(f"{scheme}{user}:{secret}@{tail}", "NONE")
    except ms.ConfigError as error:
        told = str(error)
    else:
        told = f"{address.shown} {address!r}"
    assert "8675" not in told, told
    assert "309" not in told, told


@pytest.mark.parametrize(
    "options",
    [
        "sink = 'redis', url = 'redis://u:8675/@309@host:6379/0'",
        "sink = 'redis', url = 'redis://u:8675309@host:6379/0', kye = 'n'",
        "sink = 'redis', url = 'redis://u:8675309@host:6379/0",
        "sink = 'redis://u:8675309@host:6379/0'",
    ],
)
def test_an_error_in_sql_shows_no_password(options: str) -> None:
    with pytest.raises(ms.ConfigError) as caught:
        ms.Flow("secrets").sql(f"CREATE SINK x WITH ({options})")
    assert "8675" not in str(caught.value)
    assert "309" not in str(caught.value)
    assert "^^" in str(caught.value) or "not closed" in str(caught.value)


# -- input ----------------------------------------------------------------------------------------


def test_links_in_an_input_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"ts": 1, "n": 1}\n')
    inbox = tmp_path / "in"
    (inbox / "deep").mkdir(parents=True)
    (inbox / "own.jsonl").write_text('{"ts": 1, "n": 2}\n')
    (inbox / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    for path in (inbox, inbox / "*.jsonl"):
        with pytest.raises(ms.ConfigError, match=r"link\.jsonl is a link.*links=True"):
            list_files(ms.Files(path))
        with pytest.warns(RuntimeWarning, match=r"link\.jsonl is a link"):
            assert list_files(ms.Files(path, follow=True)) == [str(inbox / "own.jsonl")]
        assert len(list_files(ms.Files(path, links=True))) == 2
    (inbox / "link.jsonl").unlink()
    (inbox / "deep" / "linked").symlink_to(tmp_path)
    with pytest.raises(ms.ConfigError, match=r"secret\.jsonl is a link"):
        list_files(ms.Files(inbox / "**" / "*.jsonl"))


def test_a_name_that_is_not_utf8_ends_no_run_that_follows(tmp_path: Path) -> None:
    """Whoever may put files there could end it: no manifest can tell of such a name."""
    (tmp_path / "good.jsonl").write_text('{"n": 1}\n')
    odd = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    odd.write_text('{"n": 2}\n')
    with pytest.raises(ms.ConfigError, match=r"caf\\xe9\.jsonl' is not UTF-8.*rename"):
        list_files(ms.Files(tmp_path))
    with pytest.warns(RuntimeWarning, match="it is not read: rename it"):
        found = list_files(ms.Files(tmp_path, follow=True))
    assert found == [seen.path for seen in look_around(str(odd))] == [str(tmp_path / "good.jsonl")]


def test_a_path_that_was_given_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.jsonl").write_text('{"ts": 1, "n": 1}\n')
    (tmp_path / "in").symlink_to(tmp_path / "real")
    (tmp_path / "one.jsonl").symlink_to(tmp_path / "real" / "a.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in ("in", "in/*.jsonl", "one.jsonl"):
            assert len(list_files(ms.Files(tmp_path / path))) == 1
    flow = ms.Flow("linked")
    flow.source(ms.Files(tmp_path / "in", time="ts")).sink(ms.Memory())
    plan_flow(flow)


# -- Spark's own files ----------------------------------------------------------------------------

LOOK = """
import os, stat, sys
from pathlib import Path
from typing import Any
import millstream as ms

tmp = Path(sys.argv[1])
seen = {}

def look(progress):
    scratch = tmp / "ck" / "spark"
    seen[oct(stat.S_IMODE(scratch.stat().st_mode))] = len(list(scratch.iterdir()))

for name in ("one", "two"):
    flow = ms.Flow("scratch")
    rows = [{"ts": i, "n": i} for i in range(10)]
    source = flow.source(ms.Generator(lambda: iter(rows), schema="ts bigint, n bigint", time="ts"))
    source.sink(ms.Memory())
    flow.run(checkpoint=tmp / "ck" if name == "one" else tmp / "other",
             master="local[1]", scratch="disk", on_progress=look if name == "one" else None)
print(seen, sorted(str(p.relative_to(tmp)) for p in tmp.glob("*/spark/**")))
"""


def test_sparks_files_are_private_and_removed(tmp_path: Path) -> None:
    """Two runs in one process: a JVM remembers the directories of the first."""
    left = tmp_path / "ck" / "spark" / "blockmgr-of-a-killed-run"
    left.mkdir(parents=True)
    (left.parent / "link").symlink_to(tmp_path)  # not followed when it is removed
    (tmp_path / "keep").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen, _, rest = done.stdout.strip().partition("} ")
    assert seen.startswith("{'0o700': "), done.stdout
    assert rest == "[]", done.stdout
    assert not left.exists()
    assert (tmp_path / "keep").read_text() == "x"
    assert stat.S_IMODE((tmp_path / "ck").stat().st_mode) & stat.S_IWOTH == 0
