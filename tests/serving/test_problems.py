"""Errors as problem details."""

from __future__ import annotations

import aiohttp
import pytest
from fastapi import FastAPI

from pipeline_ver2.errors import QueueFull, StorageFull, UnknownJob, ZroactError
from serving import problems
from tests.servers import served

PLANTED: dict[str, Exception] = {
    "full": QueueFull("too many", retry_after_s=1.2),
    "gone": UnknownJob("no job 'x'"),
    "disk": StorageFull("no room"),
    "plain": ZroactError("something"),
}


def application() -> FastAPI:
    """Fails as its path says."""
    app = FastAPI()
    problems.install(app)

    async def fail(kind: str, number: int = 0) -> int:
        if kind in PLANTED:
            raise PLANTED[kind]
        return number

    app.add_api_route("/fail/{kind}", fail)
    return app


@pytest.mark.parametrize(
    ("path", "method", "status", "code"),
    [
        ("/fail/full", "GET", 429, "queue_full"),
        ("/fail/gone", "GET", 404, "job_not_found"),
        ("/fail/disk", "GET", 507, "storage_full"),
        ("/fail/plain", "GET", 500, "internal"),
        ("/fail/no?number=many", "GET", 422, "bad_request"),
        ("/nowhere", "GET", 404, "http"),
        ("/fail/no", "DELETE", 405, "http"),
    ],
)
async def test_every_refusal_is_a_problem(path: str, method: str, status: int, code: str) -> None:
    """Of its media type, with the fields of the standard and a code of its kind."""
    with served(application(), until_ready=False) as url:
        async with aiohttp.ClientSession() as session, session.request(method, url + path) as reply:
            assert (reply.status, reply.content_type) == (status, problems.MEDIA_TYPE)
            problem = problems.Problem.model_validate(await reply.json())
            assert (problem.status, problem.code, problem.type) == (status, code, "about:blank")
            assert problem.title
            assert problem.detail
            assert reply.headers.get("Retry-After") == ("2" if code == "queue_full" else None)
            assert problem.retryable == (code == "queue_full")


async def test_a_bad_parameter_is_named() -> None:
    """The field is in the detail."""
    with served(application(), until_ready=False) as url:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/fail/no?number=many") as reply:
            assert (await reply.json())["detail"].startswith("number: ")
