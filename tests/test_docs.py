"""The documentation is true: its code runs, its links lead somewhere, and it names everything."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import millstream
from millstream import testing
from millstream.api.config import options
from millstream.api.sources import SourceSpec
from millstream.cli.commands import app
from millstream.cli.loading import load_application
from millstream.ops.sql import vocabulary
from millstream.run.spark import session
from millstream.settings import Settings

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCE = re.compile(r"^( *)```(.*)$")
_FILE = re.compile(r"\bfile=(\S+)$")
_USES_SPARK = re.compile(r"\.(run|start)\(")


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text, and the line it begins on."""

    info: str
    text: str
    line: int


def blocks_of(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    info: str | None = None
    lines: list[str] = []
    begin = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif info is None:
            info, lines, begin = fence[2].strip(), [], number + 1
        else:
            yield Block(info, textwrap.dedent("\n".join(lines)), begin)
            info = None
    assert info is None, f"{page}: the block from line {begin - 1} on is not closed"


def prose_of(page: Path) -> str:
    """A page without its code."""
    outside, inside = [], False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            outside.append(line)
    return "\n".join(outside)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- code ---------------------------------------------------------------------------------------


def _with_code() -> Iterator[Any]:
    for page in PAGES:
        blocks = [
            block
            for block in blocks_of(page)
            if block.info.split()[:1] in (["python"], ["output"]) or _FILE.search(block.info)
        ]
        if blocks:
            spark = any(_USES_SPARK.search(b.text) for b in blocks if b.info == "python")
            yield pytest.param(
                page, blocks, spark, id=_name(page), marks=[pytest.mark.spark] if spark else []
            )


@pytest.mark.parametrize(("page", "blocks", "needs_spark"), list(_with_code()))
def test_code_blocks_run(
    page: Path,
    blocks: list[Block],
    needs_spark: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if needs_spark:
        _need_spark(request)
    namespace: dict[str, Any] = {"__name__": "__main__"}  # so that workers get classes by value
    printed = ""  # by the last block, for those of kind `output`
    for block in blocks:
        if file := _FILE.search(block.info):
            Path(file[1]).write_text(block.text + "\n")
            continue
        if block.info == "output":
            assert block.text.strip() in printed, f"{page}:{block.line}: it prints {printed}"
            continue
        # Leading newlines make tracebacks point at the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        if block.info == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        else:
            assert block.info == "python no-run", f"{page}:{block.line}: {block.info!r}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_configuration_files_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {file[1]: b for b in blocks_of(page) if (file := _FILE.search(b.info))}
    for name, block in files.items():
        Path(name).write_text(block.text + "\n")
    for name in (name for name in files if name.endswith((".toml", ".sql"))):
        ledger = testing.run_in_process(load_application(Path(name)).flow, f"ck-{name}")
        assert all(account["offered"] > 0 for account in ledger.values()), ledger
        assert not any(account.get("dead") for account in ledger.values()), ledger


def _need_spark(request: pytest.FixtureRequest) -> None:
    try:
        request.getfixturevalue("spark")
    except pytest.FixtureLookupError:
        pytest.skip("there is no shared Spark session (the fixture `spark`)")


# -- links --------------------------------------------------------------------------------------


def _anchors(page: Path) -> set[str]:
    """The anchors GitHub makes of the headings."""
    headings = re.findall(r"^#+ +(.+)$", prose_of(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{_name(page)}: {target} leads nowhere"
        if anchor:
            assert anchor in _anchors(found), f"{_name(page)}: {target} has no such heading"


def test_modules_that_are_named_are_there() -> None:
    """What decisions and the changelog say of modules was so when they were written."""
    package = ROOT / "src" / "millstream"
    folders = "|".join(one.name for one in package.iterdir() if (one / "__init__.py").exists())
    named = re.compile(rf"(?<![\w/.-])((?:{folders})/[\w/]+\.py)\b")
    telling = [page for page in PAGES if page.parent.name != "decisions"]
    telling = [page for page in telling if page.name != "CHANGELOG.md"]
    gone = {
        (file.relative_to(ROOT).as_posix(), name)
        for file in [*telling, *package.glob("**/*.py")]
        for name in named.findall(file.read_text())
        if not (package / name).exists()
    }
    assert gone == set()


def test_benchmarks_are_all_in_their_table() -> None:
    from benchmarks.__main__ import NAMES

    page = (ROOT / "docs/benchmarks.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page.partition("## How the peers")[0], re.MULTILINE)
    assert sorted(listed) == sorted(NAMES)


def test_decisions_are_listed() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    for page in (ROOT / "docs/decisions").glob("[0-9]*.md"):
        assert f"]({page.name})" in index, f"{page.name} is not in docs/decisions/README.md"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("[0-9]*.md")), ids=_name)
def test_a_decision_has_all_its_parts(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    assert headings == [
        "Context",
        "Decision",
        "Measurements",
        "Consequences",
        "What would change our mind",
    ]


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_settings_are_documented_with_their_defaults(field: Any) -> None:
    page = (REFERENCE / "settings.md").read_text()
    row = re.search(rf"^\| `{field.name}` \| `(.*?)` \| (.+) \|$", page, re.MULTILINE)
    assert row is not None, f"settings.md has no row for `{field.name}`"
    default = field.default if field.default is not MISSING else field.default_factory()
    assert row[1].replace('"', "'") == repr(default)


@pytest.mark.parametrize(("name", "value"), session._PROPERTIES.items())
def test_spark_properties_are_documented(name: str, value: str) -> None:
    assert f"| `{name}` | `{value}` |" in (REFERENCE / "settings.md").read_text()


@pytest.mark.parametrize("name", millstream.__all__)
def test_public_names_are_documented(name: str) -> None:
    page = (REFERENCE / "api.md").read_text()
    assert re.search(rf"`ms\.{name}\b", page), f"api.md does not mention `ms.{name}`"


@pytest.mark.parametrize("name", testing.__all__)
def test_the_test_kit_is_documented(name: str) -> None:
    page = (REFERENCE / "api.md").read_text()
    assert re.search(rf"\*\*`{name}\b", page), f"api.md does not describe `{name}`"


@pytest.mark.parametrize("source", [one.__name__ for one in get_args(SourceSpec)])
def test_options_of_sources_are_documented(source: str) -> None:
    page = (REFERENCE / "api.md").read_text()
    for field in fields(getattr(millstream, source)):
        assert re.search(rf"\b{field.name}\b", page), f"api.md lacks {source}({field.name}=)"


@pytest.mark.parametrize("cls", [millstream.Stream, millstream.Flow, testing.Driver])
def test_public_methods_are_documented(cls: type) -> None:
    page = (REFERENCE / "api.md").read_text()
    building = {"add", "rename", "flow", "node"}  # used by streams and SQL, not by users
    building |= {"answers", "is_named", "remove", "attempt", "of_nodes", "sampled", "collected"}
    building |= {"told", "catalog"}
    for name in {name for name in dir(cls) if not name.startswith("_")} - building:
        assert re.search(rf"`{name}\b", page), f"api.md does not mention {cls.__name__}.{name}"


@pytest.mark.parametrize("table", ["source", "stream", "step", "sink", "run"])
def test_tables_of_configurations_are_documented(table: str) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    verbs = {*options.VERBS, *(key for verb in options.VERBS.values() for key in verb.keys)}
    known = {"source": options.SOURCES, "step": verbs, "sink": options.SINKS}
    assert f"| `[{table}.NAME]` |" in page or f"| `[{table}]` |" in page
    for word in known.get(table, ()):
        assert f"`{word}`" in page, f"configuration.md does not mention `{word}`"


@pytest.mark.parametrize("name", vocabulary.SUPPORTED)
def test_sql_functions_are_documented(name: str) -> None:
    page = (REFERENCE / "sql-expressions.md").read_text()
    assert re.search(rf"\b{name}\b", page, re.IGNORECASE), f"sql-expressions.md lacks {name}"


def test_commands_and_their_options_are_documented() -> None:
    page = (REFERENCE / "cli.md").read_text()
    titles = re.split(r"^## millstream (\S+)$", page, flags=re.MULTILINE)
    sections = dict(zip(titles[1::2], titles[2::2], strict=True))
    group: Any = typer.main.get_command(app)
    assert set(sections) == {name for name, command in group.commands.items() if not command.hidden}
    for name, section in sections.items():
        command = group.commands[name]
        below = getattr(command, "commands", {})
        assert all(f"`{one}`" in section or f"{name} {one}" in section for one in below)
        for param in [*command.params, *(p for one in below.values() for p in one.params)]:
            shown = [opt for opt in param.opts if opt.startswith("--")]
            shown = shown or [opt for opt in param.opts if opt.startswith("-")]
            shown = shown or [str(param.metavar)]
            for option in shown:
                assert f"`{option}" in section, f"cli.md: {name} lacks {option}"
