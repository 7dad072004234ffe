"""Servers that speak Google's and Azure's protocols, for tests."""

from __future__ import annotations

import base64
import hmac
import http.client
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millstream.state.buckets import open_bucket
from tests.local import Handler, LocalServer
from tests.services import S3, await_answer, free_port

_numbers = itertools.count()
_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, Signature=any"


class Google:
    """Google's XML protocol, which is S3's with other headers: they are translated for moto.

    No server that can be had knows all that is needed of it: that of object_store's own tests
    ignores conditions, and Google's testbench lists nothing.
    """

    scheme = "gs"

    def __init__(self, server: S3, folder: Path) -> None:
        self._server, self._account = server, folder / "account.json"
        account = {"client_email": "", "private_key": "", "private_key_id": ""}
        self._account.write_text(json.dumps({**account, "disable_oauth": True}))
        self._proxy = LocalServer(_translator(server.url))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GOOGLE_BASE_URL": self._proxy.url,
            "GOOGLE_SERVICE_ACCOUNT": str(self._account),
        }

    def make_bucket(self) -> str:
        name = f"google-{next(_numbers)}"
        self._server.make_bucket(name)
        return name

    def stop(self) -> None:
        self._proxy.close()


def _translator(url: str) -> type[Handler]:
    class Translator(Handler):
        def _any(self) -> None:
            asked = {name.lower(): value for name, value in self.headers.items()}
            asked["authorization"] = _SIGNED
            if "x-goog-if-generation-match" in asked:
                assert asked.pop("x-goog-if-generation-match") == "0"
                asked["if-none-match"] = "*"
            asked = {name.replace("x-goog-", "x-amz-"): value for name, value in asked.items()}
            path = self.path.replace("%2D", "-")  # moto does not know a bucket by another name
            status, headers, data = self.ask(urlsplit(url).netloc, path, self.body(), asked)
            told = {n.lower().replace("x-amz-", "x-goog-"): v for n, v in headers.items()}
            self.answer(status, told, data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    return Translator


class Azure:
    """Azurite, Microsoft's own server for tests: npm install -g azurite."""

    scheme = "az"

    def __init__(self, folder: Path) -> None:
        command = shutil.which("azurite-blob")
        if command is None:
            pytest.skip("there is no azurite-blob on the PATH (npm install -g azurite)")
        port = free_port()
        self._key = base64.b64encode(b"a secret that is never printed".ljust(64)).decode()
        self.url = f"http://127.0.0.1:{port}/someone"
        given = f"--blobPort {port} --blobHost 127.0.0.1 --inMemoryPersistence --silent"
        self._process = subprocess.Popen(
            [command, *given.split(), "--skipApiVersionCheck", "--disableTelemetry"],
            env={**os.environ, "AZURITE_ACCOUNTS": f"someone:{self._key}"},
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        await_answer(self._ask(port), self._process, "Azurite")

    def _ask(self, port: int) -> Any:
        def ask() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/")
            connection.getresponse().read()
            connection.close()

        return ask

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": self.url,
            "AZURE_STORAGE_ACCOUNT_NAME": "someone",
            "AZURE_STORAGE_ACCOUNT_KEY": self._key,
        }

    def make_bucket(self) -> str:
        """A container; that is the one thing obstore does not do."""
        name, now = f"azure-{next(_numbers)}", formatdate(usegmt=True)
        heads = f"x-ms-date:{now}\nx-ms-version:2021-08-06\n"
        signed = "PUT" + "\n" * 12 + f"{heads}/someone/someone/{name}\nrestype:container"
        mac = hmac.digest(base64.b64decode(self._key), signed.encode(), "sha256")
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.netloc, timeout=30)
        given = {
            "x-ms-date": now,
            "x-ms-version": "2021-08-06",
            "Content-Length": "0",
            "Authorization": f"SharedKey someone:{base64.b64encode(mac).decode()}",
        }
        connection.request("PUT", f"{place.path}/{name}?restype=container", headers=given)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()
        return name

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module", params=[Google, Azure], ids=["gs", "az"])
def cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Google | Azure]:
    folder = tmp_path_factory.mktemp("cloud")
    server = request.getfixturevalue("server") if request.param is Google else None
    found = Azure(folder) if server is None else Google(server, folder)
    yield found
    found.stop()


@pytest.fixture
def bucket(cloud: Google | Azure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    open_bucket.cache_clear()
    return f"{cloud.scheme}://{cloud.make_bucket()}"
