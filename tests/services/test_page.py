"""The page in a real browser, against `zroact up` with a token: a video's whole way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

import serving.demo
from pipeline_ver2.results import Results
from tests.browser import PATIENCE_MS, PHONE, View, chromium, view
from tests.services.job_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIP = Path(serving.demo.__file__).with_name("clip.mp4")
SLOTS = 13


def sign_in(shown: View) -> None:
    """With the token of the server."""
    shown.page.get_by_label("Access token").fill("a long secret")
    shown.page.get_by_role("button", name="Sign in").click()
    expect(shown.page.get_by_role("heading", name="Jobs")).to_be_visible()


def watch_progress(shown: View) -> Callable[[], list[str]]:
    """Note what the list and the view of the job tell of its progress; gives a function that tells all of it."""
    shown.page.evaluate(
        """() => {
          const told = window.told = [];
          const look = () => {
            const words = document.querySelector(".job .progress p, .jobs small")?.textContent ?? "";
            if (words.includes("of about 419 frames") && words !== told.at(-1)) told.push(words);
          };
          new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    return lambda: list(shown.page.evaluate("window.told"))


def test_a_video_is_sent_followed_watched_and_its_results_fetched(
    tmp_path: Path, three_free_ports: tuple[int, int, int]
) -> None:
    """Upload, progress, answers as they come, the video that jumps to a slot, downloads; at desktop and phone width."""
    server = Server(tmp_path, three_free_ports, stage2_s=0.6, serving={"token": "a long secret"})
    with server.run(), chromium() as browser:
        with view(browser, server.url) as shown:
            sign_in(shown)
            page = shown.page
            expect(page.get_by_text("No jobs yet.")).to_be_visible()
            shown.shoot("desktop-empty")
            progress = watch_progress(shown)
            page.set_input_files("#file", CLIP)
            page.get_by_role("button", name="Start").click()
            page.get_by_role("link", name="clip.mp4").click()
            expect(page.locator(".answer").first).to_be_visible(timeout=PATIENCE_MS)
            shown.shoot("desktop-running")
            expect(page.locator(".title .state")).to_have_text("Done", timeout=PATIENCE_MS)
            expect(page.locator(".answer")).to_have_count(SLOTS)
            assert len(progress()) > 1
            results = check_jump(shown)
            assert (results.state, results.counts.slots) == ("succeeded", SLOTS)
            shown.shoot("desktop-job")
        with view(browser, server.url, PHONE, dark=True) as shown:
            shown.shoot("phone-sign-in")
            sign_in(shown)
            shown.shoot("phone-list")
            shown.page.get_by_role("link", name="clip.mp4").click()
            check_jump(shown)
            assert not shown.overflows()
            shown.shoot("phone-job")


def check_jump(shown: View) -> Results:
    """A click on a slot takes the video to its time; the frames beside the answers are there. Gives the download."""
    page = shown.page
    with page.expect_download() as download:
        page.get_by_role("link", name="Results (JSON)").click()
    results = Results.model_validate(json.loads(download.value.path().read_text()))
    assert download.value.suggested_filename == "clip-results.json"
    player = page.locator("video")
    expect(player).to_have_js_property("readyState", 4, timeout=PATIENCE_MS)
    for index in (7, 3):
        page.locator(f".stages [data-slot='{index}']").click()
        wanted = results.slots[index].start_s
        assert wanted <= player.evaluate("video => video.currentTime") < wanted + 0.02
        expect(page.locator(".answer[aria-current]")).to_have_attribute("data-slot", str(index))
    pictures = page.locator(".answer[aria-current] img")
    expect(pictures).to_have_count(3)
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
        expect(picture).not_to_have_js_property("naturalWidth", 0)
    return results
