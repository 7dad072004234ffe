"""The live page in a real browser, over a real server and a checkpoint that is being written."""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import millstream as ms
from millstream.run.batches.ledger import WAYS
from millstream.serve.app import STATIC
from millstream.serve.drawing import drawn
from millstream.serve.following import Follower
from millstream.serve.server import Server, open_server
from millstream.serve.status import Live, Served
from millstream.state.manifests import Hot
from millstream.testing import Driver, run_in_process
from tests.serve.writing import GONE, Put, Writer
from tests.variants import variants

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
IMAGE = '<img src=x onerror="window.pwned = 1">'
SCRIPT = "</script><script>window.pwned = 1</script>"
ODD_KEYS = [
    IMAGE,
    SCRIPT,
    "javascript:window.pwned=1",
    "a/b",
    "a?b#c&d=e%2F%",
    "..",
    ".",
    " spaces  inside ",
    "ключ 鍵 😀",
    "é",
    "k" * 1000,
    "__proto__",
    "constructor",
]
ROWS = "#list li"


# -- the browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, the same for all tests of this file."""
    if not CHROMIUM:
        pytest.skip("no Chromium on the PATH (Debian's package is called chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as tools:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


@dataclass
class Window:
    """A page, and everything it complained about."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def wait(self, condition: str, argument: Any = None) -> None:
        """Until a JavaScript condition is true."""
        self.page.wait_for_function(condition, arg=argument, polling=50, timeout=120_000)

    def text(self, selector: str) -> str:
        """What an element says."""
        return str(self.page.locator(selector).text_content())

    def says(self, selector: str, text: str) -> None:
        """Wait until an element says exactly this."""
        is_so = "([where, text]) => document.querySelector(where)?.textContent === text"
        self.wait(is_so, [selector, text])

    def leaves(self) -> dict[str, str]:
        """The open leaves of the slate that is shown: name -> value as it is written."""
        found = self.page.evaluate(
            """() => [...document.querySelectorAll("#slate li")]
                .filter((li) => !li.querySelector("details"))
                .map((li) => [li.querySelector(".name, .index")?.textContent ?? "",
                              li.querySelector(".value").textContent])"""
        )
        return dict(found)

    def shows(self, name: str, value: str) -> None:
        """Wait until the slate that is shown has this value."""
        is_so = """([name, value]) => [...document.querySelectorAll("#slate li")].some((li) =>
            li.querySelector(".name")?.textContent === name
            && li.querySelector(".value").textContent === value)"""
        self.wait(is_so, [name, value])


@pytest.fixture(scope="module")
def profile(browser: Any) -> Iterator[Any]:
    """What pages share; one stays open, since the first of each costs more than most tests."""
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    opened.new_page()
    yield opened
    opened.close()


@pytest.fixture
def window(profile: Any) -> Iterator[Window]:
    """A fresh page; at the end, no test may have violated the policy or raised an error."""
    profile.clear_cookies()
    page = profile.new_page()
    page.set_default_timeout(120_000)  # of a busy machine
    found = Window(page)
    page.on("pageerror", lambda error: found.complaints.append(f"error: {error}"))
    page.on("console", lambda line: _note(found, line))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation',"
        " (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"
    )
    yield found
    touched = page.evaluate("() => window.pwned ?? null")
    page.close()
    assert touched is None, "a key or value was run as code"
    assert found.complaints == []


def _note(window: Window, line: Any) -> None:
    # A browser writes refused connections and answers of 404 to its console by itself.
    if line.type in ("error", "warning") and "Failed to load resource" not in line.text:
        window.complaints.append(line.text)


# -- the server ---------------------------------------------------------------------------------


@dataclass
class Site:
    """A checkpoint that is written and served."""

    writer: Writer
    server: Server

    def url(self, updater: str | None = None, key: str | None = None) -> str:
        """The page, or the place of an updater or slate in it."""
        parts = [quote(part, safe="") for part in (updater, key) if part is not None]
        return f"{self.server.url}/#/{'/'.join(['slates', *parts]) if parts else ''}"

    def count(self, key: Any, n: int, **more: Any) -> int:
        """Commit one slate."""
        return self.writer.commit(Put(key, {"n": n, **more}, ts=n * 1_000_000))


def serve(path: Path, port: int = 0) -> Server:
    """A server over a checkpoint."""
    server = open_server(Served(Follower(path)), "127.0.0.1", port)
    server.start()
    return server


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An empty checkpoint that is served."""
    writer = Writer(tmp_path, flow="shops")
    found = Site(writer, serve(tmp_path))
    yield found
    found.server.stop()


def account(offered: int, **ways: int) -> dict[str, int]:
    """A step of the ledger."""
    return {"offered": offered, **dict.fromkeys(WAYS, 0), **ways}


# -- views --------------------------------------------------------------------------------------


def test_a_view_follows_its_rows(tmp_path: Path, window: Window) -> None:
    flow = ms.Flow("cars")
    flow.sql(
        "CREATE STREAM cars (id INT, make STRING, PRIMARY KEY (id)) "
        "WITH (source = 'http', port = 8401); CREATE STREAMED VIEW now AS SELECT * FROM cars"
    )
    with Driver(flow, checkpoint=tmp_path / "ck") as driver:
        hostile = "<img src=x onerror='window.pwned=1'>"
        driver.push("cars_records", [{"id": 1, "make": hostile}, {"id": 2, "make": None}]).step()
        server = serve(tmp_path / "ck")
        try:
            window.page.goto(server.url)
            window.says("#views-note", "now: 2 rows, batch 0")
            assert {hostile, "null"} < set(
                window.page.locator("#views-rows td").all_text_contents()
            )
            driver.push("cars_records", [{"id": 2, "make": "B"}]).step()
            window.says("#views-note", "now: 2 rows, batch 1")
            changed = "#views-rows .changed, #views-rows .changed-again"
            assert window.page.locator(changed).all_text_contents() == ["B"]
        finally:
            server.stop()


# -- slates -------------------------------------------------------------------------------------


def test_a_slate_changes_while_batches_are_committed(site: Site, window: Window) -> None:
    site.count("walmart", 1)
    site.count("target", 7)
    window.page.goto(site.url("counts"))
    window.page.get_by_role("link", name="walmart").click()
    window.shows("n", "1")
    assert window.text("#slate-key") == "walmart"
    window.says("#slate-live", "● live")
    for n in (2, 3, 40):
        site.count("walmart", n, last={"price": n / 4})
        window.shows("n", str(n))
    window.shows("price", "10.0")
    window.wait("() => document.querySelector('#slate .changed, #slate .changed-again') !== null")
    rows = "() => [...document.querySelectorAll('#list li')].map((li) => li.textContent)"
    window.wait(f"() => ({rows})().includes('walmart{{n: 40, last: {{price: 10.0}}}}')")
    assert window.page.evaluate(rows)[0] == "target{n: 7}"  # untouched, and in order of the keys


def test_a_slate_goes_and_comes_again(site: Site, window: Window) -> None:
    site.count("walmart", 5)
    window.page.goto(site.url("counts", "walmart"))
    window.shows("n", "5")
    window.says("#slate-live", "● live")
    site.writer.commit(Put("walmart", GONE))
    window.wait(
        "() => document.querySelector('#slate-empty').textContent.startsWith('There is no')"
    )
    window.wait("() => document.querySelectorAll('#list li').length === 0")
    site.count("walmart", 6)
    window.shows("n", "6")


def test_hostile_and_odd_keys_are_text_and_have_an_address(site: Site, window: Window) -> None:
    site.writer.commit(*(Put(key, {"n": i, "text": key}) for i, key in enumerate(ODD_KEYS)))
    window.page.goto(site.url("counts"))
    window.wait(f"() => document.querySelectorAll('{ROWS}').length === {len(ODD_KEYS)}")
    shown = window.page.evaluate(
        "() => [...document.querySelectorAll('#list .key')].map((key) => key.textContent)"
    )
    assert shown == sorted(ODD_KEYS)
    for i, key in enumerate(ODD_KEYS):
        window.page.evaluate("(to) => { location.href = to }", site.url("counts", key))
        window.shows("n", str(i))
        assert window.text("#slate-key") == key
    assert (
        window.page.evaluate("() => document.querySelectorAll('main img, main script').length") == 0
    )
    for i in (0, 5):  # the links of the list lead to the same places
        window.page.locator(ROWS).nth(sorted(ODD_KEYS).index(ODD_KEYS[i])).get_by_role(
            "link"
        ).click()
        window.shows("n", str(i))
    for key in ODD_KEYS:  # and what changes is text as well
        site.writer.commit(Put(key, {"n": 100, "text": SCRIPT, IMAGE: [IMAGE]}))
    window.shows("n", "100")
    window.shows("text", '"' + SCRIPT + '"')
    assert (
        window.page.evaluate("() => document.querySelectorAll('main img, main script').length") == 0
    )


def test_invisible_and_reversing_characters_are_written_out(site: Site, window: Window) -> None:
    site.count("a\u202egnp.exe", 1, text="x\u2066y")
    site.count("\0zero", 2)
    site.count("", 3)
    window.page.goto(site.url("counts"))
    window.wait(f"() => document.querySelectorAll('{ROWS}').length === 3")
    keys = window.page.locator("#list .key").all_text_contents()
    assert keys == ["(empty key)", "\\u0000zero", "a\\u202egnp.exe"]
    for place, n in enumerate((3, 2, 1)):
        window.page.locator(ROWS).nth(place).get_by_role("link").click()
        window.shows("n", str(n))
    window.shows("text", '"x\\u2066y"')


def test_keys_of_other_types(site: Site, window: Window) -> None:
    site.writer.commit(Put("42", {"n": 1}), Put(42, {"n": 2}), Put(("a", 1), {"n": 3}))
    window.page.goto(site.url("counts"))
    window.wait(f"() => document.querySelectorAll('{ROWS}').length === 3")
    assert window.page.locator("#list .key").all_text_contents() == ["42", "42", '["a",1]']
    window.page.locator(ROWS).nth(2).get_by_role("link").click()
    window.shows("n", "3")
    window.page.goto(site.url("counts", "42"))
    window.shows("n", "1")  # the text first
    site.writer.commit(Put(42, {"n": 20}), Put(("a", 1), {"n": 30}))
    rows = "() => [...document.querySelectorAll('#list .brief')].map((one) => one.textContent)"
    window.wait(f"() => ({rows})().join() === '{{n: 1}},{{n: 20}},{{n: 30}}'")
    assert window.leaves() == {"n": "1"}


def test_numbers_are_exact(site: Site, window: Window) -> None:
    site.writer.commit(
        Put("x", {"big": 2**60 + 1, "whole": 1.0, "small": 1e-7, "all": [2**53 + 1]})
    )
    window.page.goto(site.url("counts", "x"))
    window.shows("big", str(2**60 + 1))
    assert window.leaves() == {
        "big": str(2**60 + 1),
        "whole": "1.0",
        "small": "1e-7",
        "0": str(2**53 + 1),
    }
    site.writer.commit(Put("x", {"big": 2**60 + 2}))
    window.shows("big", str(2**60 + 2))


def test_a_deep_link_with_a_long_list_is_live(site: Site, window: Window) -> None:
    keys = [f"key {i:03d}" for i in range(95)]
    site.writer.commit(*(Put(key, {"n": i}) for i, key in enumerate(keys)))
    window.page.goto(site.url("counts", "key 090"))  # not on the page of the list
    window.shows("n", "90")
    window.says("#slate-live", "● live")
    site.writer.commit(Put("key 090", {"n": 1}), Put("key 003", {"n": 2}))
    window.shows("n", "1")
    window.wait("() => document.querySelectorAll('#list .brief')[3].textContent === '{n: 2}'")


def test_pages_and_prefixes(site: Site, window: Window) -> None:
    keys = [f"key {i:03d}" for i in range(95)]
    site.writer.commit(*(Put(key, {"n": i}) for i, key in enumerate(keys)))
    window.page.goto(site.url("counts"))
    seen: list[str] = []
    for page in range(1, 10):
        window.wait(
            "(last) => document.querySelectorAll('#list li').length"
            " && document.querySelector('#list .key').textContent > last",
            seen[-1] if seen else "",
        )
        seen += window.page.locator("#list .key").all_text_contents()
        assert window.text("#page-number") == f"Page {page}"
        if not window.page.locator("#more").is_enabled():
            break
        window.page.locator("#more").click()
    assert seen == keys
    window.page.locator("#back").click()
    window.wait("() => document.querySelector('#list .key').textContent === 'key 060'")
    window.page.locator("#prefix").fill("key 04")
    window.wait("() => document.querySelectorAll('#list li').length === 10")
    assert window.page.locator("#list .key").all_text_contents() == keys[40:50]
    window.page.locator("#prefix").fill("key 091")
    window.page.keyboard.press("Enter")
    window.shows("n", "91")


# -- the flow -----------------------------------------------------------------------------------


def test_the_ledger_says_whether_it_balances(site: Site, window: Window) -> None:
    good = account(10, aggregated=6, dead=1, late=1, diverted=1, dropped=1)
    huge = account(2**62 + 1, aggregated=2**62, late=1)  # floats would lose the last one
    site.writer.commit(ledger={"in": good, "counts": huge})
    window.page.goto(site.url())
    window.says("#ledger-note", "✓ all 2 steps balance")
    verdicts = "#ledger .verdict"
    assert window.page.locator(verdicts).all_text_contents() == ["✓ balances", "✓ balances"]
    cells = window.page.locator('[data-step="in"] td.number').all_text_contents()
    assert cells[:6] == ["10", "6", "1", "1", "1", "1"]
    site.writer.commit(ledger={"in": good, "counts": {**huge, "aggregated": 2**62 - 2}})
    window.says("#ledger-note", "✗ 1 step does not balance")
    assert window.page.locator(verdicts).all_text_contents() == ["✓ balances", "✗ off by 2"]


def test_failed_results_are_shown(site: Site, window: Window) -> None:
    whole = account(10, aggregated=10) | {"results": 41, "answered": 7, "failed": 2}
    site.writer.commit(ledger={"in": account(10, aggregated=10), "counts": whole}, dead=2)
    window.page.goto(site.url())
    window.says("#ledger-note", "✓ all 2 steps balance; ⚠ 2 results failed")
    cells = window.page.locator('[data-step="counts"] td.number')
    assert cells.all_text_contents()[-2:] == ["41", "2"]
    assert "warn" in str(cells.last.get_attribute("class"))
    window.says('[data-tile="Dead letters"] .note', "2 failed results")


def test_the_workflow_is_drawn_with_its_cycle(site: Site, window: Window) -> None:
    kinds = {"in": "source", "counts": "update", "hot": "stream", IMAGE: "sink"}
    edges = [["in", "counts"], ["counts", "hot"], ["hot", "counts"], ["counts", IMAGE]]
    place = site.writer.place
    program = place.read_program()
    assert program is not None
    nodes = [{"name": name, "kind": kind, "level": 0} for name, kind in kinds.items()]
    site.server.stop()
    place.write_program({**program, "graph": {"nodes": nodes, "edges": edges}})
    site.writer.commit(ledger={"in": account(3, aggregated=3), "counts": account(3, aggregated=3)})
    site.server = serve(site.writer.path)
    window.page.goto(site.url())
    window.wait("() => document.querySelectorAll('#graph .node').length === 4")
    assert window.page.locator("#graph .edge").count() == 4
    assert window.page.locator("#graph .edge.back").count() == 1
    assert window.text("#graph .node.source .total") == "3"
    window.page.locator("#graph .node.sink").focus()
    assert IMAGE in window.text("#tip")
    window.page.locator("#graph a.node.update").press("Enter")
    window.wait("() => location.hash === '#/slates/counts'")


def test_hot_keys_lead_to_their_slates(site: Site, window: Window) -> None:
    site.count(IMAGE, 9)
    site.writer.commit(hot={"counts": Hot(40, [(IMAGE, 30), ("b", 2)])})
    window.page.goto(site.url())
    window.says("#hot .share", "75 %")
    assert window.page.locator("#hot .share").all_text_contents() == ["75 %", "5.0 %"]
    window.page.locator("#hot a.key").first.click()
    window.shows("n", "9")


def test_records_of_the_future_are_counted_beside_late_ones(site: Site, window: Window) -> None:
    site.writer.commit(ledger={"in": account(9, aggregated=9, future=2)})
    window.page.goto(site.url())
    window.says("[data-tile='Late'] .note", "2 in the future")
    assert window.text("[data-tile='Late'] .value") == "0"
    window.says("#ledger-note", "✓ all 1 step balance")


def test_a_flow_without_anything_is_shown(site: Site, window: Window) -> None:
    window.page.goto(site.url())
    window.says("#flow", "shops")
    window.says("#state-text", "stopped")
    assert window.text("[data-tile='Last batch'] .value") == "none"
    window.page.locator("#to-slates").click()
    window.says("#list-empty", "There are no slates yet.")
    window.says("#summary", "no batch yet")


def test_a_running_flow_is_followed_to_its_end(tmp_path: Path, window: Window) -> None:
    names = random.Random(5).choices(["walmart", "target", IMAGE], [5, 3, 2], k=240)
    start = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)

    # The flow goes on when the page has shown what it did: with waits of its own it could be over
    # before the browser has looked, and a page that begins at the end never says "running".
    go_on = [threading.Event() for _ in range(3)]
    go_on[0].set()

    def checkins() -> Iterator[dict[str, Any]]:
        for i, name in enumerate(names):
            if i % 80 == 0:
                assert go_on[i // 80].wait(300)
            yield {"ts": start + timedelta(seconds=i), "retailer": name}

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        if slate["n"] % 10 == 0:
            ctx.publish("tens", event.key, slate["n"])

    def last(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["reached"] = event.value

    flow = ms.Flow("shops")
    source = ms.Generator(checkins, schema="ts timestamp, retailer string", time="ts")
    keyed = flow.source(source, name="checkins").key_by("retailer")
    keyed.update(count, name="counts", publishes=["tens"])
    flow.stream("tens").key_by("key").update(last, name="tens-of", publishes=[])
    runs = threading.Thread(target=run_in_process, args=(flow, tmp_path), daemon=True)
    runs.start()
    while not (tmp_path / "flow.json").exists():
        time.sleep(0.02)
    server = serve(tmp_path)
    try:
        window.page.goto(f"{server.url}/#/slates/counts/walmart")
        window.says("#state-text", "running")
        window.shows("n", str(Counter(names[:80])["walmart"]))
        go_on[1].set()
        window.wait(
            "() => document.querySelector('#slate .changed, #slate .changed-again') !== null"
        )
        window.says("#state-text", "running")
        go_on[2].set()
        window.says("#state-text", "complete")
        expected = Counter(names)
        window.shows("n", str(expected["walmart"]))
        runs.join(60)
        listed = (
            "(said) => [...document.querySelectorAll('#list li a')]"
            ".map((one) => one.textContent).join() === said.join()"
        )
        window.wait(listed, [f"{key}{{n: {expected[key]}}}" for key in sorted(expected)])
        window.page.locator("#updater").select_option("tens-of")
        tens = {key: n // 10 * 10 for key, n in expected.items()}
        window.wait(listed, [f"{key}{{reached: {tens[key]}}}" for key in sorted(tens)])
        window.page.locator("#to-flow").click()
        window.wait("() => document.querySelectorAll('#graph .node').length === 4")
        edges = window.page.locator("#graph .edge")
        assert (edges.count(), window.page.locator("#graph .edge.back").count()) == (3, 0)
        assert "balance" in window.text("#ledger-note")
        cells = window.page.locator('[data-step="counts"] td.number').all_text_contents()
        assert cells == ["240", "240", "0", "0", "0", "0", "✓ balances", "0", "0"]
    finally:
        for one in go_on:
            one.set()
        server.stop()
    assert not runs.is_alive()


@pytest.mark.parametrize("scheme", variants(["dark", "light"]))
def test_a_narrow_window_is_not_scrolled_sideways(site: Site, window: Window, scheme: str) -> None:
    site.writer.commit(
        Put("k" * 900, {"text": "x" * 3000, "n" * 200: {"deep": [[[["y" * 300]]]]}}),
        ledger={"in": account(10**15, aggregated=10**15), "counts": account(7, aggregated=7)},
    )
    window.page.emulate_media(color_scheme=scheme)
    for width in (360, 700, 1280):
        window.page.set_viewport_size({"width": width, "height": 700})
        for place in (site.url(), site.url("counts", "k" * 900)):
            window.page.goto(place)
            there = "#slate li" if "slates" in place else "#ledger .verdict"
            window.wait("(there) => document.querySelector(there) !== null", there)
            assert window.page.evaluate("() => document.documentElement.scrollWidth") <= width
    ink, paper = window.page.evaluate(
        "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; }"
    )
    assert (_lightness(ink) < _lightness(paper)) == (scheme == "light")


def _lightness(colour: str) -> int:
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


# -- for days -----------------------------------------------------------------------------------


def test_a_stopped_server_is_seen_and_found_again(site: Site, window: Window) -> None:
    site.count("walmart", 1)
    window.page.goto(site.url("counts", "walmart"))
    window.shows("n", "1")
    window.says("#state-text", "stopped")  # the flow, not the server
    port = site.server.port
    site.server.stop()
    window.says("#state-text", "unreachable")
    assert window.page.locator("#notice").is_visible()
    assert "No answer from the server since" in window.text("#notice")
    assert window.page.evaluate("() => document.body.classList.contains('stale')")
    window.shows("n", "1")  # what was last seen stays
    assert window.text("#slate-live") == "○ as last read"
    site.count("walmart", 2)
    site.server = serve(site.writer.path, port)
    window.shows("n", "2")
    window.says("#state-text", "stopped")
    assert not window.page.locator("#notice").is_visible()
    window.says("#slate-live", "● live")
    site.count("walmart", 3)
    window.shows("n", "3")


def test_another_checkpoint_behind_the_same_address(
    site: Site, window: Window, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for n in range(5):
        site.count("walmart", n)
    window.page.goto(site.url("counts", "walmart"))
    window.shows("n", "4")
    other = Writer(tmp_path_factory.mktemp("other"), flow="others")
    other.commit(Put("walmart", {"n": 77}))
    port = site.server.port
    site.server.stop()
    site.server = serve(other.path, port)
    window.says("#flow", "others")
    window.shows("n", "77")
    other.commit(Put("walmart", {"n": 78}))
    window.shows("n", "78")


def test_with_a_token_the_page_keeps_a_cookie(site: Site, window: Window) -> None:
    site.count("walmart", 1)
    site.server.stop()
    token = "one-token-for-this-test"
    site.server = open_server(Served(Follower(site.writer.path)), "127.0.0.1", 0, token)
    site.server.start()
    refused = window.page.goto(site.url("counts", "walmart"))
    assert refused.status == 401
    window.page.goto(f"{site.server.url}/?token={token}#/slates/counts/walmart")
    window.shows("n", "1")
    window.says("#slate-live", "● live")
    assert token not in window.page.url
    assert window.page.evaluate("() => document.cookie") == ""
    site.count("walmart", 2)
    window.shows("n", "2")


def test_a_page_left_open_does_not_grow(site: Site, window: Window) -> None:
    site.count("walmart", 0)
    window.page.goto(site.url("counts", "walmart"))
    window.shows("n", "0")
    window.says("#slate-live", "● live")
    elements = "() => document.querySelectorAll('*').length"
    before = window.page.evaluate(elements)
    for n in range(1, 41):
        site.count("walmart", n)
    window.shows("n", "40")
    assert window.page.evaluate(elements) == before
    points, counts = window.page.evaluate(
        """async () => {
            const { History } = await import("/static/history.js");
            const history = new History();
            for (let batch = 0; batch < 20000; batch += 1) {
                history.add({ batch, at: 1e9 + batch / 4, running: true, sources: [],
                              ledger: { a: { offered: batch } },
                              rates: { rows_per_second: 1, batch_seconds: 1 } });
            }
            return [history.points.length, history.counts.length];
        }"""
    )
    assert points == 3000
    assert counts == 40


# -- what holds without a server ----------------------------------------------------------------


def test_violations_of_the_policy_would_be_noticed(site: Site, window: Window) -> None:
    window.page.goto(site.url())
    window.says("#flow", "shops")
    window.page.evaluate("() => document.body.setAttribute('onclick', 'window.pwned = 1')")
    window.page.evaluate("() => document.body.click()")
    window.wait("() => true")
    assert any(line.startswith("policy: script-src") for line in window.complaints)
    window.complaints.clear()


def test_every_graph_is_laid_out_without_overlap(site: Site, window: Window) -> None:
    window.page.goto(site.url())
    rnd = random.Random(1)
    for size in (1, 2, 3, 5, 12, 12, 12, 25, 25):
        names = [f"n{i}" for i in range(size)]
        edges = [rnd.sample(names, 2) for _ in range(2 * size)] if size > 1 else [["n0", "n0"]]
        layout = window.page.evaluate(
            """async ([names, edges]) => {
                const { arrange } = await import("/static/layout.js");
                const size = { along: 160, across: 70, layers: 46, rows: 20 };
                const found = arrange(names.map((name) => ({ name })), edges, size);
                return { ...found, places: Object.fromEntries(found.places) };
            }""",
            [names, edges],
        )
        places, drawn = layout["places"], layout["edges"]
        assert set(places) == set(names)
        assert {(e["from"], e["to"]) for e in drawn} == {tuple(e) for e in edges}
        for a in names:
            x, y = places[a]["along"], places[a]["across"]
            assert 0 <= x <= layout["along"] - 160
            assert -1e-6 <= y <= layout["across"] - 70 + 1e-6
            others = [places[b] for b in names if b != a and places[b]["along"] == x]
            assert all(abs(other["across"] - y) >= 70 for other in others)
        for edge in drawn:
            forward = places[edge["from"]]["along"] < places[edge["to"]]["along"]
            assert forward or edge["back"]


def test_early_answers_are_drawn_with_error_bars(
    browser: Any, window: Window, tmp_path: Path
) -> None:
    keys = ["de", IMAGE, "sw"]

    def look(progress: float, n: list[float], off: float | None, **said: Any) -> ms.Snapshot:
        low, high = ([None if off is None else v * (1 + by * off) for v in n] for by in (-1, 1))
        table = pa.table({"lang": keys, "n": n, "n_lower": low, "n_upper": high})
        return ms.Snapshot(progress, table, False, promise="holds", elapsed=7.0, **said)

    looks = [look(0.01, [90.0, 210.0, 3.0], None), look(0.25, [100.0, 200.0, 2.0], 0.5, left=21.0)]
    Writer(tmp_path, flow="shops").commit()
    live = Live(answers=drawn("agg", looks, 5))
    view = Served(Follower(tmp_path, {}), lambda: live)
    server = open_server(view, "127.0.0.1", 0, None)
    server.start()
    try:
        window.page.goto(server.url)
        window.wait("() => document.querySelectorAll('#answers .whisker').length === 3")
        heads = window.page.locator("#answers figcaption b").all_text_contents()
        assert heads == [IMAGE, "de", "sw"]
        assert window.text("#answers figcaption .note >> nth=0") == "200 ± 50 %"
        assert window.page.locator("#answers .free").count() == 3  # without bounds
        assert window.text("#answers [data-part=note]") == "25.0 % read in 7 s, about 21 s left"
        assert "2 groups more. Bars at 95 % confidence: holds." in window.text(
            "#answers [data-part=more]"
        )
        live = Live(answers=drawn("agg", [*looks, look(0.5, [1.0] * 3, 0.1, ended_by="me")], 3))
        window.wait("() => document.querySelectorAll('#answers .whisker').length === 6")
        assert "ended by me" in window.text("#answers [data-part=note]")
        assert not window.complaints
    finally:
        server.stop()


def test_fidelity_over_time_and_who_is_silent(window: Window, tmp_path: Path) -> None:
    now = int(time.time() * 1e6)

    def told(silent: float) -> Live:
        points = [
            {"batch": n, "at": time.time() - 30 + n, "batch_seconds": 0.1, "fidelity": share}
            for n, share in enumerate((1.0, 1.0, 0.8125, 0.9))
        ]
        people = {"web-1": (now, 0.2), IMAGE: (now - 90_000_000, silent), "web-3": (now, 0.1)}
        return Live(history=points, participants={"in": people})

    live = told(75.0)
    Writer(tmp_path, flow="shops").commit()
    server = open_server(Served(Follower(tmp_path, {}), lambda: live), "127.0.0.1", 0, None)
    server.start()
    try:
        window.page.goto(server.url)
        window.wait("() => document.querySelectorAll('#people tbody tr').length === 3")
        assert window.text("#people-note") == f"✗ silent: {IMAGE}"
        assert window.text("#people tbody tr >> nth=0").startswith(IMAGE)  # the longest first
        assert window.text("#people tbody tr >> nth=0 >> td.warn") == "1 min 15 s"
        assert window.text("#fidelity-now") == "now 90.0 %, least 81.3 %"
        assert window.page.locator("#fidelity .line").get_attribute("d").count("L") == 3
        live = told(0.3)
        window.wait("() => document.querySelector('#people-note').textContent.startsWith('✓')")
        assert window.text("#people-note") == "✓ all 3 are there"
        assert not window.complaints
    finally:
        server.stop()


def test_a_flow_without_figures_has_no_chart_of_them(window: Window, tmp_path: Path) -> None:
    Writer(tmp_path, flow="shops").commit()
    live = Live(participants={"in": {"in": (0, 99.0)}})
    server = open_server(Served(Follower(tmp_path, {}), lambda: live), "127.0.0.1", 0, None)
    server.start()
    try:
        window.page.goto(server.url)
        window.wait("() => document.querySelectorAll('#ledger tbody tr').length > 0")
        assert window.page.locator("#people-pair").is_hidden()
        assert not window.complaints
    finally:
        server.stop()


def test_assets_make_no_markup_from_text_and_load_nothing_from_elsewhere() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|"
        r"DOMParser|srcdoc|\beval\(|new Function|setTimeout\(\s*[\"'`]|\.style\.cssText"
    )
    elsewhere = re.compile(r"(?:src|href|url\(|import|from|fetch\()\W*(?:https?:)?//")
    for file in sorted(STATIC.iterdir()):
        text = file.read_text()
        assert not forbidden.search(text), file.name
        assert not elsewhere.search(text), file.name
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", page)
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
