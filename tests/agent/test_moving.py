"""Agents that get another parent, and collectors that are not the ones they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.agent.agent import Agent
from millstream.agent.relay import Relay
from millstream.errors import RunError
from tests.agent.centre import Centre, abandon, agent_of, free_port, relay_of, write
from tests.agent.test_refusals import flow_of, rows, until_done

pytestmark = pytest.mark.usefixtures("impatient")


class Site:
    """Two agents that send one record a message."""

    def __init__(self, place: Path, port: int) -> None:
        self.place, self.port = place, port

    def agent(self, name: str, to: int | None = None) -> Agent:
        flow = flow_of(self.place, self.port, name)
        return agent_of(flow, to or self.port, name, self.place / "agents", rows=1)

    def relay(self, name: str, listen: int, to: int | None = None, most: int = 2) -> Relay:
        flow = flow_of(self.place, self.port)
        return relay_of(flow, to or self.port, listen, name, self.place / "agents", most)


def vanish(relay: Relay) -> None:
    """Gone without a word."""
    relay.collector.close()
    abandon(relay.working.children)  # type: ignore[union-attr]
    relay.outbox.hold.release()


def test_agents_of_a_relay_that_is_gone_send_elsewhere(place: Path, port: int) -> None:
    site, between = Site(place, port), free_port()
    with Centre(flow_of(place, port), place / "collector") as centre:
        relay = site.relay("rack", between)
        relay.step()
        both = [site.agent(name, between) for name in "ab"]
        for _ in range(3):  # something is committed at the root, more lies at the relay
            for one in both:
                one.step()
            relay.step(), centre.step()
        assert any(one.committed >= 0 for one in both)
        for one in both:
            one.step()
        relay.make()
        vanish(relay)
        for one in both:
            one.close()
        both = [site.agent(name) for name in "ab"]
        until_done(centre, *both)
        assert [row["n"] for row in rows(place)] == [4, 4]
        back = site.relay("rack", between)
        with pytest.raises(RunError, match="another way"):
            for _ in range(3):
                back.step()
        back.close()
        centre.step()
        assert [row["n"] for row in rows(place)] == [4, 4]
        assert centre.ledger["in"]["offered"] == 8
        for one in both:
            one.close()


def test_a_new_relay_takes_the_place_of_one_that_is_gone(place: Path, port: int) -> None:
    site, between = Site(place, port), free_port()
    with Centre(flow_of(place, port), place / "collector") as centre:
        relay = site.relay("rack", between)
        relay.step()
        both = [site.agent(name, between) for name in "ab"]
        for _ in range(3):
            for one in both:
                one.step()
            relay.step(), centre.step()
        vanish(relay)
        fresh = site.relay("rack-b", between)
        until_done(centre, *both, fresh)
        assert [row["n"] for row in rows(place)] == [4, 4]
        assert centre.ledger["in"]["offered"] == 8
        for one in (*both, fresh):
            one.close()


@pytest.mark.parametrize("kind", ["new", "older"])
def test_a_collector_that_has_forgotten_is_said(place: Path, port: int, kind: str) -> None:
    write(place, "a", *range(13, 20))
    site, path = Site(place, port), place / "collector"
    with Centre(flow_of(place, port), path) as centre:
        one = site.agent("a")
        one.step(), centre.step()
    shutil.copytree(path, place / "older")
    with Centre(flow_of(place, port), path) as centre:
        for _ in range(5):
            one.step(), centre.step()
        assert min(one.outbox.sizes) > 2
    shutil.rmtree(path), shutil.rmtree(place / "out")
    if kind == "older":
        shutil.copytree(place / "older", path)
    with (
        Centre(flow_of(place, port), path),
        pytest.raises(RunError, match=r"'a'.*lost its checkpoint.*new name"),
    ):
        for _ in range(4):
            one.step()
    one.close()
