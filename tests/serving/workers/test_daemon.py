"""The HTTP side both daemons share."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from pipeline_ver2 import errors, wire
from serving.workers.daemon import IdempotencyCache, cancel_when_gone, create_app, request_context
from tests.servers import served

LIMIT_MB = 0.1
MAX_BODIES = 3


class Item(BaseModel):
    """A small JSON body."""

    name: str
    sides: tuple[int, ...] = ()


class Story:
    """What happens inside the test application, told to a test in another thread."""

    def __init__(self) -> None:
        self.ready = True
        self._events = queue.Queue[str]()
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next_event(self) -> str:
        """The next thing that happens."""
        return await asyncio.to_thread(self._events.get, timeout=10)

    def release(self) -> None:
        """Let everything that hangs end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._released.set)

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Remember the server's loop."""
        self._loop = asyncio.get_running_loop()
        yield

    async def hang(self) -> None:
        """Work that ends when released."""
        self._events.put("started")
        try:
            await self._released.wait()
        except asyncio.CancelledError:
            self._events.put("cancelled")
            raise


ERRORS: dict[str, errors.ZroactError] = {
    "queue": errors.QueueFull("full", retry_after_s=2.2),
    "engine": errors.EngineFailed("broken"),
    "shed": errors.DeadlineShed("too late"),
    "path": errors.MediaPathError("outside"),
    "unreachable": errors.StageUnreachable("not yet", retry_after_s=0.01),
}


def _application(story: Story) -> FastAPI:
    async def ready() -> None:
        if not story.ready:
            raise errors.StageUnreachable("still loading", retry_after_s=1)

    app = create_app(
        "test",
        lifespan=story.lifespan,
        ready=ready,
        registry=CollectorRegistry(),
        max_body_mb=LIMIT_MB,
        max_bodies=MAX_BODIES,
    )
    app.get("/fail/{kind}")(_fail)
    app.get("/context")(_context)
    app.post("/raw")(_raw)
    app.post("/item")(_item)

    @app.post("/hang")
    async def hanging(request: Request) -> str:
        await request.body()
        await cancel_when_gone(request, story.hang())
        return "done"

    return app


async def _fail(kind: str) -> None:
    raise ERRORS[kind]


async def _context(request: Request) -> dict[str, Any]:
    found = request_context(request)
    left = None if found.deadline_at is None else found.deadline_at - time.monotonic()
    return {"client": found.client, "left_s": left, "key": found.idempotency_key}


async def _raw(request: Request) -> int:
    return len(await request.body())


async def _item(body: Item) -> str:
    return body.name


@pytest.fixture
def story() -> Story:
    """The test application's memory."""
    return Story()


@pytest.fixture
def url(story: Story) -> Iterator[str]:
    """A daemon made of nothing but the shared parts and a few routes."""
    with served(_application(story)) as base:
        yield base
        story.release()


@pytest.fixture
def tracebacks() -> Iterator[queue.Queue[str]]:
    """Tracebacks as they are logged, in whatever thread."""
    found = queue.Queue[str]()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                found.put(logging.Formatter().format(record))

    collector = Collector()
    logging.getLogger().addHandler(collector)
    yield found
    logging.getLogger().removeHandler(collector)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def test_health_says_alive_while_not_ready(url: str, story: Story, http: aiohttp.ClientSession) -> None:
    """A daemon that still loads is alive, not ready, and says when to ask again."""
    story.ready = False
    async with http.get(url + "/livez") as alive, http.get(url + "/readyz") as ready:
        assert alive.status == 200
        assert ready.status == 503
        assert ready.headers["Retry-After"] == "1"
        assert (await ready.json())["error"] == {
            "code": "stage_unreachable",
            "message": "still loading",
            "retryable": True,
            "type": "server_error",
            "param": None,
        }


@pytest.mark.parametrize("kind", ERRORS)
async def test_errors_of_the_tree_keep_their_code_and_status(url: str, kind: str, http: aiohttp.ClientSession) -> None:
    """Whatever an endpoint raises from the tree arrives with its own status, code and hint when to come back."""
    error = ERRORS[kind]
    async with http.get(f"{url}/fail/{kind}") as reply:
        assert reply.status == error.http_status
        assert await reply.json() == wire.error_body(error)
        waits = {"queue": "3", "unreachable": "1"}
        assert reply.headers.get("Retry-After") == waits.get(kind)


async def test_unknown_errors_do_not_leak(url: str, http: aiohttp.ClientSession, tracebacks: queue.Queue[str]) -> None:
    """A bug gives 500 in the usual shape; its details stay in the log."""
    async with http.get(url + "/fail/no-such-kind") as reply:
        body = await reply.json()
    assert reply.status == 500
    assert body["error"]["code"] == "internal"
    assert "no-such-kind'" not in body["error"]["message"]
    assert "KeyError" in await asyncio.to_thread(tracebacks.get, timeout=10)


async def test_wrong_routes_and_methods_have_the_usual_shape(url: str, http: aiohttp.ClientSession) -> None:
    """404 and 405 look like every other refusal."""
    for path, status in (("/nowhere", 404), ("/item", 405)):
        async with http.get(url + path) as reply:
            assert reply.status == status
            assert (await reply.json())["error"]["code"] == "http"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"sides": [1]}', "name"),
        ('{"name": "a", "sides": [1, "x"]}', "sides.1"),
        ("{", "body: not valid JSON"),
        ("[]", "body"),
    ],
)
async def test_a_malformed_body_is_refused_by_field(
    url: str, body: str, said: str, http: aiohttp.ClientSession
) -> None:
    """A JSON body that does not fit gets 422 and the name of the field."""
    async with http.post(url + "/item", data=body, headers={"Content-Type": "application/json"}) as reply:
        assert reply.status == 422
        assert (await reply.json())["error"]["message"].startswith(said)


async def _pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(0, size, 10_000):
        yield b"x" * 10_000


@pytest.mark.parametrize("path", ["/raw", "/item"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_body_over_the_limit_is_refused(
    url: str, path: str, http: aiohttp.ClientSession, *, streamed: bool
) -> None:
    """Announced or streamed, raw or JSON: a byte over the limit is 413, the limit itself is fine."""
    limit = int(LIMIT_MB * 1e6)
    headers = {"Content-Type": "application/json"}
    over = _pieces(limit + 10_000) if streamed else b"x" * (limit + 1)
    async with http.post(url + path, data=over, headers=headers) as reply:
        assert reply.status == 413
        assert (await reply.json())["error"]["code"] == "body_too_large"
    async with http.post(url + "/raw", data=_pieces(limit) if streamed else b"x" * limit) as reply:
        assert await reply.json() == limit


async def test_bodies_at_once_are_bounded(url: str, story: Story, http: aiohttp.ClientSession) -> None:
    """One request more than allowed is told 429 at once, and the places come back."""
    hanging = [asyncio.create_task(http.post(url + "/hang")) for _ in range(MAX_BODIES)]
    assert [await story.next_event() for _ in hanging] == ["started"] * MAX_BODIES
    async with http.post(url + "/raw", data=b"x") as refused, http.get(url + "/livez") as alive:
        assert (refused.status, alive.status) == (429, 200)
        assert refused.headers["Retry-After"] == "1"
    story.release()
    for reply in await asyncio.gather(*hanging):
        assert reply.status == 200
        reply.release()
    async with http.post(url + "/raw", data=b"x") as accepted:
        assert accepted.status == 200


async def test_a_client_that_goes_takes_its_work_along(url: str, story: Story, http: aiohttp.ClientSession) -> None:
    """Work for a closed connection is cancelled."""
    request = asyncio.create_task(http.post(url + "/hang"))
    assert await story.next_event() == "started"
    request.cancel()
    assert await story.next_event() == "cancelled"


async def test_request_headers_are_read(url: str, http: aiohttp.ClientSession) -> None:
    """Deadline, client and key come from their headers; without them the peer's address stands for the client."""
    headers = {wire.DEADLINE_HEADER: "1500", wire.CLIENT_HEADER: "camera-7", wire.IDEMPOTENCY_HEADER: "job/1"}
    async with http.get(url + "/context", headers=headers) as reply:
        found = await reply.json()
        assert (found["client"], found["key"]) == ("camera-7", "job/1")
        assert 0 < found["left_s"] <= 1.5
    async with http.get(url + "/context") as reply:
        assert await reply.json() == {"client": "127.0.0.1", "left_s": None, "key": None}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (wire.DEADLINE_HEADER, "soon"),
        (wire.DEADLINE_HEADER, "nan"),
        (wire.DEADLINE_HEADER, "inf"),
        (wire.CLIENT_HEADER, ""),
        (wire.IDEMPOTENCY_HEADER, "k" * 201),
    ],
)
async def test_unusable_headers_are_named(url: str, name: str, value: str, http: aiohttp.ClientSession) -> None:
    """A header that cannot be used is refused by name."""
    async with http.get(url + "/context", headers={name: value}) as reply:
        assert reply.status == 422
        assert name in (await reply.json())["error"]["message"]


async def test_metrics_have_one_prefix(url: str, http: aiohttp.ClientSession) -> None:
    """Every metric carries the project's prefix."""
    async with http.get(url + "/metrics") as reply:
        names = [line.split()[2] for line in (await reply.text()).splitlines() if line.startswith("# TYPE")]
    assert names
    assert all(name.startswith("zroact_") for name in names)


async def test_openapi_describes_refusals(url: str, http: aiohttp.ClientSession) -> None:
    """The published description shows our error shape for 422, not the framework's."""
    async with http.get(url + "/openapi.json") as reply:
        text = await reply.text()
    assert "HTTPValidationError" not in text
    assert json.loads(text)["paths"]["/item"]["post"]["responses"]["422"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ErrorReply"
    }


class Work:
    """Counts its runs; each ends when released."""

    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self.error: errors.ZroactError | None = None

    async def __call__(self) -> int:
        """One run; its number is its result."""
        self.runs += 1
        number = self.runs
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return number


async def _start(*calls: Coroutine[Any, Any, int]) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(call) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.fault("O2")
async def test_the_same_key_runs_once() -> None:
    """Callers with one key share one run, later ones get its result again; other keys and no key run for themselves."""
    cache, work = IdempotencyCache[int](4), Work()
    tasks = await _start(cache.run("a", work), cache.run("a", work), cache.run("b", work), cache.run(None, work))
    work.go.set()
    first, joined, other, keyless = await asyncio.gather(*tasks)
    assert first == joined
    assert {first, other, keyless} == {1, 2, 3}
    assert await cache.run("a", work) == first
    assert await cache.run(None, work) == 4


async def test_the_memory_is_bounded() -> None:
    """The result not used for longest is forgotten first."""
    cache, work = IdempotencyCache[int](2), Work()
    work.go.set()
    assert [await cache.run(key, work) for key in ("a", "b", "a", "c", "a", "b")] == [1, 2, 1, 3, 1, 4]


async def test_failures_are_shared_but_not_remembered() -> None:
    """A failure reaches everybody who joined, and the next caller starts afresh."""
    cache, work = IdempotencyCache[int](2), Work()
    work.error = errors.EngineFailed("broken")
    tasks = await _start(cache.run("a", work), cache.run("a", work))
    work.go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results == [work.error, work.error]
    work.error = None
    assert await cache.run("a", work) == 2


async def test_a_cancelled_caller_leaves_the_others_their_work() -> None:
    """Whoever joined, first or later, can go; the rest get the result."""
    cache, work = IdempotencyCache[int](2), Work()
    first, second, third = await _start(*(cache.run("a", work) for _ in range(3)))
    first.cancel()
    second.cancel()
    await asyncio.wait({first, second})
    work.go.set()
    assert await third == 1
    assert (work.runs, work.cancelled) == (1, 0)


async def test_the_last_caller_takes_the_work_along() -> None:
    """When all are gone the work is cancelled, and the key starts afresh at once."""
    cache, work = IdempotencyCache[int](2), Work()
    first, second = await _start(cache.run("a", work), cache.run("a", work))
    first.cancel()
    second.cancel()
    (third,) = await _start(cache.run("a", work))
    await asyncio.wait({first, second})
    assert work.cancelled == 1
    work.go.set()
    assert await third == 2
