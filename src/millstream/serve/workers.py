"""Threads for answers that take their time, so that no other answer waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")


class Workers:
    """A thread; so many requests may use or await it, and further ones are sent away."""

    def __init__(self, name: str, most: int) -> None:
        self._threads = ThreadPoolExecutor(1, f"millstream-{name}")
        self._most, self._busy = most, 0

    async def do(self, work: Callable[[], T]) -> T:
        """The result of some work, when it is its turn."""
        if self._busy >= self._most:
            raise HTTPException(429, "too many requests at the same time", {"retry-after": "1"})
        self._busy += 1
        try:  # who leaves before its turn takes its work along
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._busy -= 1

    def close(self) -> None:
        """What has not begun is not done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
