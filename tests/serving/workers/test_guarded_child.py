"""A daemon's child and its output."""

from __future__ import annotations

import asyncio
import logging

import pytest

from serving.workers.guarded_child import GuardedChild


def shell(script: str) -> tuple[str, ...]:
    """A command that runs a script."""
    return ("/bin/sh", "-c", script)


async def logged(caplog: pytest.LogCaptureFixture, wanted: str) -> None:
    """Wait until a line is in the log."""
    async with asyncio.timeout(10):
        while wanted not in caplog.messages:  # noqa: ASYNC110 - logs have no event
            await asyncio.sleep(0.01)


async def test_its_exit_code_is_told() -> None:
    """Once it has ended; stopping it then is harmless."""
    child = await GuardedChild.start(shell("exit 3"), "child")
    assert await child.wait() == 3
    await child.stop()


async def test_stopping_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    """In good time."""
    with caplog.at_level(logging.INFO):
        child = await GuardedChild.start(shell("echo up; exec sleep 600"), "child")
        await logged(caplog, "child: up")
    async with asyncio.timeout(10):
        await child.stop()
        assert await child.wait() == 143


async def test_its_output_is_logged_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    """Both streams, whatever bytes; a line without end is cut, and never fills the pipe or the memory."""
    script = "echo one; echo two >&2; printf 'bad \\377\\n'; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last"
    with caplog.at_level(logging.INFO):
        child = await GuardedChild.start(shell(script), "child")
        await logged(caplog, "child: last")
    assert caplog.messages[:3] == ["child: one", "child: two", "child: bad \ufffd"]
    assert max(len(message) for message in caplog.messages) < 10_000
    await child.stop()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo one; echo 'x ValueError: too small'; echo 'RuntimeError: see above'; echo end", "ValueError: too small"),
        ("echo one; echo; printf two", "two"),
        ("exit 1", ""),
    ],
)
async def test_its_last_words(script: str, said: str) -> None:
    """The first error it names, else its last line; nothing if it was silent."""
    child = await GuardedChild.start(shell(script), "child")
    await child.wait()
    await child.stop()
    assert child.last_words() == said


async def test_the_childs_environment_has_no_configuration_of_ours(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other variables are passed on."""
    monkeypatch.setenv("ZROACT_STAGE2__LIMIT", "9")
    monkeypatch.setenv("OTHER_VARIABLE", "kept")
    with caplog.at_level(logging.INFO):
        child = await GuardedChild.start(shell('echo "[$ZROACT_STAGE2__LIMIT$OTHER_VARIABLE]"'), "child")
        await logged(caplog, "child: [kept]")
    await child.stop()
