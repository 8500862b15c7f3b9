"""Answer waiting queries together.

Collect the queries that arrive while the model is busy, and answer them together.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from system.serve.search import Answer, Search, SearchQuery

AT_ONCE = 32  # queries in a batch; they are embedded in groups of similar length, so that larger batches pad less
MAX_WAITING = 256
GATHERING_S = 0.003  # a batch waits for further queries: without it, the first of 32 would delay all others by 35 ms


class BusyError(Exception):
    """Raised if the queue of waiting queries is full."""


class Queue:
    """Queue of queries that a Search answers in batches. A separate thread keeps the event loop free."""

    def __init__(self, search: Search, at_once: int = AT_ONCE, max_waiting: int = MAX_WAITING) -> None:
        """Create an empty queue of at most `max_waiting` queries. search: Answers up to `at_once` queries together."""
        self._search, self._at_once, self._max_waiting = search, at_once, max_waiting
        self._waiting: asyncio.Queue[tuple[SearchQuery, asyncio.Future[Answer]]] = asyncio.Queue()

    async def answer(self, wanted: SearchQuery) -> Answer:
        """Wait until the query `wanted` is answered, and return its answer. Raises BusyError if the queue is full."""
        if self._waiting.qsize() >= self._max_waiting:
            raise BusyError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((wanted, future))
        return await future

    async def work(self) -> None:
        """Answer waiting queries, batch after batch, until this task is cancelled."""
        with ThreadPoolExecutor(1, "search") as thread:
            while True:
                batch = await self._collect_batch()
                await self._answer_all(thread, [wanted for wanted, _ in batch], [future for _, future in batch])

    async def _collect_batch(self) -> list[tuple[SearchQuery, asyncio.Future[Answer]]]:
        """Wait for a query, then collect more until none arrives within GATHERING_S seconds. Returns: The batch."""
        batch = [await self._waiting.get()]
        found = True
        while found and len(batch) < self._at_once:
            await asyncio.sleep(GATHERING_S)
            found = not self._waiting.empty()
            while len(batch) < self._at_once and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
        return batch

    async def _answer_all(
        self, thread: ThreadPoolExecutor, wanted: Sequence[SearchQuery], futures: Sequence[asyncio.Future[Answer]]
    ) -> None:
        """Answer the batch of queries `wanted` in `thread`, and set the answers or the error in `futures`."""
        try:
            answers = await asyncio.get_running_loop().run_in_executor(thread, self._search.answer, wanted)
        except Exception as error:  # every query of this batch gets the error; the next batch may succeed
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, answer in zip(futures, answers, strict=True):
            if not future.done():  # skip cancelled requests
                future.set_result(answer)
