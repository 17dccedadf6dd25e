"""News by HTTP POST to a real server: signed, judged, and never followed elsewhere."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.config_events import WebhookConfig
from pipeline_ver2.errors import SinkError, SinkRefused
from pipeline_ver2.webhook import Webhook, signature
from tests.receiver import Receiver, always, hang, receiver

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


async def send(server: Receiver, **settings: Any) -> None:  # noqa: ANN401 - values of any key
    """Post one piece of news."""
    config = WebhookConfig.model_validate({"url": server.url, "secret": SECRET, **settings})
    async with Webhook(config) as webhook:
        await webhook.send("news_1", b'{"a": 1}')


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of their own tests."""
    told = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert told == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_news_is_posted_signed() -> None:
    """With its id, the time of the try, and the body as it was signed."""
    async with receiver() as server:
        await send(server)
    (post,) = server.posts
    assert (post.id, post.body, post.headers["content-type"]) == ("news_1", b'{"a": 1}', "application/json")
    assert abs(int(post.headers["webhook-timestamp"]) - time.time()) < 60
    assert post.is_signed_with(SECRET)
    assert not post.is_signed_with("whsec_" + base64.b64encode(b"x" * 32).decode())


async def test_without_a_secret_there_is_no_signature() -> None:
    """For receivers that ask for none."""
    async with receiver() as server:
        await send(server, secret=None)
    assert "webhook-signature" not in server.posts[0].headers


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_failures_may_be_tried_again(status: int) -> None:
    """Whatever is not taken is an error with its status, and the receiver's wish when to come back."""
    async with receiver(always(status, **{"Retry-After": "7"})) as server:
        with pytest.raises(SinkError, match=f"HTTP {status}") as caught:
            await send(server)
    assert (caught.value.retryable, caught.value.reason, caught.value.retry_after_s) == (True, "http", 7)


@pytest.mark.parametrize("after", ["", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "²"])
async def test_an_unusual_wish_is_none(after: str) -> None:
    """Only seconds are understood."""
    async with receiver(always(503, **{"Retry-After": after})) as server:
        with pytest.raises(SinkError) as caught:
            await send(server)
    assert caught.value.retry_after_s == 0


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_refused(status: int) -> None:
    """News goes to the configured URL only."""
    async with receiver() as elsewhere, receiver(always(status, Location=elsewhere.url)) as server:
        with pytest.raises(SinkRefused, match="redirects") as caught:
            await send(server)
        assert elsewhere.posts == []
    assert (caught.value.retryable, caught.value.reason) == (False, "redirect")


async def test_who_is_gone_is_told_no_more() -> None:
    """410 means that nobody wants it."""
    async with receiver(always(410)) as server:
        with pytest.raises(SinkRefused) as caught:
            await send(server)
    assert caught.value.reason == "gone"


@pytest.mark.fault("E1")
async def test_a_receiver_that_hangs_is_left() -> None:
    """After `timeout_s`."""
    async with receiver(hang) as server:
        with pytest.raises(SinkError, match=r"no reply within 0\.2 s") as caught:
            await send(server, timeout_s=0.2)
    assert caught.value.reason == "timeout"


async def test_a_reply_of_any_size_is_not_read() -> None:
    """What the receiver answers beside its status is nothing to us, even if it never ends."""

    async def endless(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        while True:
            await reply.write(b"x" * 65536)

    app = web.Application()
    app.add_routes([web.post("/hook", endless)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        await send(Receiver(url=f"http://127.0.0.1:{runner.addresses[0][1]}/hook"))
    finally:
        await runner.cleanup()


async def test_nobody_there(free_port: int) -> None:
    """A refused connection names the place, and not the secret parts of the URL."""
    server = Receiver(url=f"http://user:HUSH@127.0.0.1:{free_port}/HUSH?token=HUSH")
    with pytest.raises(SinkError, match=rf"^http://127\.0\.0\.1:{free_port}: ") as caught:
        await send(server)
    assert "HUSH" not in str(caught.value)
    assert (caught.value.retryable, caught.value.reason) == (True, "unreachable")
