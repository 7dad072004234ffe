"""TLS and passwords on a real broker: what is wrong is told, and no secret with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import millstream as ms
from millstream.errors import ConfigError
from millstream.testing import run_in_process
from tests.kafka.conftest import make_certificate
from tests.kafka.test_source import SCHEMA, encoded, rows

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl to make a certificate"
)
WORD = "a-word-nobody-sees"


@pytest.fixture(scope="module")
def user(topics: Any) -> str:
    """Somebody with a password that is kept as SCRAM keeps it."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("me", info, WORD.encode())
    topics.admin.alter_user_scram_credentials([change])["me"].result(30)
    return "me"


def options(topics: Any, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(topics.certificate),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "env:BROKER_WORD",
        **more,
    }


def through(topics: Any, read: str, written: str, place: Path, given: dict[str, str]) -> None:
    """A flow from topic to topic over the secure port."""
    servers = f"127.0.0.1:{topics.broker.secure}"
    flow = ms.Flow("secure")
    source = ms.Kafka(
        servers, read, schema=SCHEMA, time="ts", follow=False, options=given, wait="100s"
    )
    flow.source(source, name="in").sink(
        ms.Kafka(servers, written, key="k", options=given, wait="100s"), name="out"
    )
    run_in_process(flow, place)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_flow_reads_and_writes_over_tls_with_a_password(
    topics: Any, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    name, word = ("me", WORD) if mechanism != "PLAIN" else ("plain", "a-plain-word")
    monkeypatch.setenv("BROKER_WORD", word)
    read, written = topics.make(), topics.make()
    topics.send(read, encoded(rows(50)))
    given = options(topics, **{"sasl.mechanism": mechanism, "sasl.username": name})
    through(topics, read, written, tmp_path / "ck", given)
    assert len(topics.committed(written)) == 50
    for path in (tmp_path / "ck").rglob("*"):
        assert not path.is_file() or word.encode() not in path.read_bytes()


@pytest.mark.parametrize("what", ["password", "certificate", "no password", "no file"])
def test_what_is_wrong_is_told_without_the_secret(
    topics: Any, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("BROKER_WORD", "another-word" if what == "password" else WORD)
    given, told = {
        "password": (options(topics), "uthentication"),
        "certificate": (options(topics), "certificate"),
        "no password": ({"security.protocol": "SSL"}, "certificate"),
        "no file": (options(topics, **{"ssl.ca.location": "/nowhere.pem"}), "ssl.ca.location"),
    }[what]
    if what == "certificate":
        given["ssl.ca.location"] = str(make_certificate(tmp_path))
    read, written = topics.make(), topics.make()
    with pytest.raises(ConfigError, match=told) as caught:
        through(topics, read, written, tmp_path / "ck", given)
    assert "options=" in str(caught.value) and "\n" not in str(caught.value)
    assert WORD not in str(caught.value) and "another-word" not in str(caught.value)
