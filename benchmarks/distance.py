"""A server that is further away than it is: a proxy that lets every request wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Distant:
    """A port on this machine behind which another one lies, so many seconds away."""

    def __init__(self, port: int, seconds: float) -> None:
        self._port, self._seconds, self.requests = port, seconds, 0
        self._loop = asyncio.new_event_loop()
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), daemon=True)
        self._thread.start()
        begun.wait()

    @property
    def url(self) -> str:
        """What clients are to be told."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Let go of the port."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, begun: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, "127.0.0.1", 0)
        )
        self.port = server.sockets[0].getsockname()[1]
        begun.set()
        self._loop.run_forever()
        server.close()

    async def _connected(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """One connection. What a client says after the server has spoken is another request."""
        server, there = await asyncio.open_connection("127.0.0.1", self._port)
        turn = ["server"]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                self._pass_on(client, there, turn, "client"),
                self._pass_on(server, back, turn, "server"),
            )

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, turn: list[str], who: str
    ) -> None:
        while data := await source.read(1 << 18):
            if turn[0] != who and who == "client":
                self.requests += 1
                await asyncio.sleep(self._seconds)
            turn[0] = who
            to.write(data)
            await to.drain()
        to.close()
