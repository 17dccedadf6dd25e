"""The page in a real browser, against the API in this process: words of others, keyboard, names, errors, many slots."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pipeline_ver2.command import VIDEO_NAME
from pipeline_ver2.report import TRACE_NAME
from pipeline_ver2.results import (
    JOURNAL_NAME,
    Counts,
    KeyframeRecord,
    Results,
    SlotRecord,
    Timing,
    VideoRecord,
    write_results,
)
from pipeline_ver2.wire import Detection, LabelScore
from tests.browser import DESKTOP, PHONE, View, chromium, view
from tests.serving.conftest import Api, ServeApi, enter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with chromium() as started:
        yield started


@pytest.fixture
def hostile(tmp_path: Path, clip: Path) -> Path:
    """A video whose name is markup."""
    path = tmp_path / f"{MARKUP}.mp4"
    path.write_bytes(clip.read_bytes())
    return path


def add_ended(api: Api, video: Path, slots: int = 3) -> Results:
    """A job `done` that has ended with so many slots of one keyframe each, half a second apart, and all its files."""
    enter(api.data, api.store, "done", video)
    folder = api.data.folder("done").path
    found = Detection(box=(10, 10, 40, 60), labels=(LabelScore(name=MARKUP, score=0.9),))
    keyframes = tuple(
        KeyframeRecord(key_index=15 * n + 1, time_s=n / 2, state="ok", detections=(found,)) for n in range(slots)
    )
    answer = {"action": f"<b>{MARKUP}</b>", "description": f"<script>alert(2)</script>{MARKUP}", "more": MARKUP}
    records = tuple(
        SlotRecord(
            index=n, key_indices=(15 * n + 1,), start_s=n / 2, end_s=n / 2, state="ok", answer=answer, attempts=1
        )
        for n in range(slots)
    )
    lines = ['{"type":"header"}', *(record.model_dump_json() for record in (*keyframes, *records))]
    (folder / JOURNAL_NAME).write_text("".join(f"{line}\n" for line in lines))
    results = Results(
        state="succeeded",
        source=video.name,
        video=VideoRecord(width=96, height=64, duration_s=5, fps=30, rotation=0, timestamps="container"),
        models={},
        keyframes=keyframes,
        slots=records,
        counts=Counts(
            frames_decoded=145, frames_grid=145, keyframes=slots, batches=1, slots=slots, ok=slots,
            failed=0, skipped=0, shed=0, dropped=0,
        ),
        timing=Timing(wall_s=1, first_answer_s=1, stage1_ended_s=1, stage2_began_s=1, busy_s={}),
        warnings=(MARKUP,),
    )  # fmt: skip
    write_results(folder, results)
    (folder / TRACE_NAME).write_text(json.dumps({"traceEvents": list(trace(slots))}))
    (folder / VIDEO_NAME).write_bytes(video.read_bytes())
    api.store.end("done", "succeeded")
    return results


def trace(slots: int) -> Iterator[dict[str, object]]:
    """Spans of both stages; two slots are answered at a time."""
    for number in range(slots):
        for name, begin, took in (("decode", 0.1, 0.05), ("stage1_run", 0.2, 0.08), ("stage2_run", 0.3, 0.15)):
            event = {"ph": "X", "name": name, "ts": (begin + number / 10) * 1e6, "dur": took * 1e6}
            yield {**event, "args": {"slot": number} if name == "stage2_run" else {}}


def open_job(shown: View) -> Page:
    """The view of the ended job, complete."""
    shown.page.goto(f"{shown.page.url.split('#')[0]}#/jobs/done")
    expect(shown.page.locator(".stages [data-slot='0']")).to_be_visible()
    return shown.page


def test_words_of_others_are_shown_as_text(browser: Browser, serve_api: ServeApi, hostile: Path) -> None:
    """Names of files, labels, answers, warnings: whatever markup they are, it is read and not obeyed."""
    api = serve_api()
    add_ended(api, hostile)
    with view(browser, api.url) as shown:
        page = shown.page
        page.set_input_files("#file", hostile)
        expect(page.locator(".chosen")).to_contain_text(MARKUP)
        page.get_by_role("button", name="Start").click()
        expect(page.locator(".jobs a")).to_have_text([hostile.name, hostile.name])
        open_job(shown)
        for place in (
            "h1",
            ".warnings",
            ".answer h3 >> nth=0",
            ".answer p >> nth=0",
            ".frame small >> nth=0",
            "pre >> nth=0",
        ):
            expect(page.locator(place)).to_contain_text(MARKUP)
        page.locator(".stages [data-slot='1']").hover()
        expect(page.locator(".tip")).to_contain_text(MARKUP)
        assert page.locator("img[src='x'], .answer b b, main script").count() == 0


def test_by_keyboard_alone(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """A video is sent, its job opened and cancelled, with the focus always to be seen and each step told."""
    api = serve_api()
    with view(browser, api.url) as shown:
        page = shown.page
        expect(page.get_by_text("No jobs yet.")).to_be_visible()
        heard = hear(page)
        page.on("filechooser", lambda _chooser: None)  # from now on choosers come to us and not to the desktop
        shown.tab_to("Choose a video")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(clip)
        expect(page.get_by_role("button", name="Start")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="clip.mp4")).to_be_visible()
        assert {"Sending clip.mp4", "clip.mp4 is sent"} <= set(heard())
        shown.tab_to("clip.mp4")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="clip.mp4")).to_be_focused()
        shown.tab_to("Cancel…")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Cancel…")).to_be_focused()
        page.keyboard.press("Enter")
        shown.tab_to("Cancel the job")
        page.keyboard.press("Enter")
        expect(page.locator(".title .state")).to_have_text("Cancelled")
        expect(page.get_by_role("heading", name="clip.mp4")).to_be_focused()
        assert "clip.mp4: Cancelled" in heard()
    assert [job.state for job in api.store.page(state=None, limit=9, before=None)] == ["cancelled"]


def hear(page: Page) -> Callable[[], list[str]]:
    """Listen to the page's live region; gives a function that tells all it has said since."""
    page.evaluate(
        """() => {
          window.heard = [];
          const said = document.getElementById("said");
          new MutationObserver(() => window.heard.push(said.textContent)).observe(said, { childList: true });
        }"""
    )
    return lambda: list(page.evaluate("window.heard"))


def test_the_timeline(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """A click, or an arrow key and Enter, takes the video to a slot; it tells what lies under the pointer; it zooms."""
    api = serve_api()
    results = add_ended(api, clip, slots=8)
    with view(browser, api.url) as shown:
        page = open_job(shown)
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        player = page.locator("video")
        page.locator(".stages [data-slot='5']").click()
        begin = results.slots[5].start_s
        assert begin <= player.evaluate("video => video.currentTime") < begin + 0.02
        assert shown.focused().startswith("Slot 6")
        page.keyboard.press("ArrowRight")
        assert shown.focused().startswith("Slot 7")
        expect(page.locator(".tip")).to_contain_text("Slot 7")
        page.keyboard.press("Enter")
        begin = results.slots[6].start_s
        assert begin <= player.evaluate("video => video.currentTime") < begin + 0.02
        expect(page.locator(".answer[aria-current]")).to_have_attribute("data-slot", "6")
        expect(player).to_be_in_viewport(ratio=1)
        page.keyboard.press("Home")
        before = page.locator(".stages [data-slot='0']").bounding_box()
        page.keyboard.press("+")
        after = page.locator(".stages [data-slot='0']").bounding_box()
        assert before
        assert after
        assert after["width"] > 1.8 * before["width"]
        assert shown.focused().startswith("Slot 1")
        page.get_by_role("button", name="Show all").click()
        expect(page.locator(".stages .slot")).to_have_count(8)
        page.locator(".answer .jump").nth(2).click()
        begin = results.slots[2].start_s
        assert begin <= player.evaluate("video => video.currentTime") < begin + 0.02


def test_what_there_is_has_a_name_and_room(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """Every control can be named by a screen reader, and no page is wider than its window."""
    api = serve_api()
    add_ended(api, clip)
    enter(api.data, api.store, "waiting", clip)
    api.store.insert("long", "x" * 300, api.store.get("done").options, None)
    with view(browser, api.url) as shown:
        page = shown.page
        expect(page.locator(".jobs a")).to_have_count(3)
        check_names_and_room(shown)
        page.goto(f"{api.url}/#/jobs/waiting")
        page.get_by_role("button", name="Cancel…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        check_names_and_room(shown)
        open_job(shown)
        check_names_and_room(shown)
        page.goto(f"{api.url}/#/jobs/long")
        expect(page.get_by_role("heading", name="xxx")).to_be_visible()
        check_names_and_room(shown)


def check_names_and_room(shown: View) -> None:
    """At the width of a desktop, of a phone, and of a very small one."""
    assert shown.nameless() == []
    for width, height in (DESKTOP, PHONE, (320, 640)):
        shown.page.set_viewport_size({"width": width, "height": height})
        assert not shown.overflows(), width
    shown.page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})


def test_signing_in(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """A wrong token is told, the right one opens the view that was asked for, video and all; then out again."""
    api = serve_api(token="right")
    add_ended(api, clip)
    with view(browser, f"{api.url}/#/jobs/done") as shown:
        page = shown.page
        expect(page.get_by_label("Access token")).to_be_focused()
        for wrong in ("wrong", "\u65e5\u672c"):
            page.keyboard.type(wrong)
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("This is not the token.")
            expect(page.get_by_label("Access token")).to_be_focused()
        shown.forgive("401")
        assert (shown.nameless(), shown.overflows()) == ([], False)
        page.keyboard.type("right")
        page.keyboard.press("Enter")
        expect(page.locator("video")).to_have_js_property("readyState", 4)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Access token")).to_be_visible()
        page.reload()
        expect(page.get_by_label("Access token")).to_be_visible()


def test_errors_in_words(browser: Browser, serve_api: ServeApi, clip: Path, tmp_path: Path) -> None:
    """What is no video, too much, or gone, is told with what to do, and can be tried again."""
    api = serve_api(max_queue=1)
    (tmp_path / "notes.mp4").write_text("no video at all")
    with view(browser, api.url) as shown:
        page = shown.page
        page.set_input_files("#file", [tmp_path / "notes.mp4", clip, clip])
        page.get_by_role("button", name="Start 3 jobs").click()
        alerts = page.get_by_role("alert")
        expect(alerts).to_have_count(2)
        expect(alerts.nth(0)).to_contain_text("notes.mp4 could not be taken. Not a video")
        expect(alerts.nth(1)).to_contain_text("The queue is full. Try again in a moment.")
        (waiting,) = api.store.page(state="queued", limit=9, before=None)
        api.store.ask_cancel(waiting.id)
        alerts.nth(1).get_by_role("button", name="Try again").click()
        expect(alerts).to_have_count(1)
        expect(page.locator(".jobs a")).to_have_count(2)
        page.get_by_role("button", name="Forget notes.mp4").click()
        expect(alerts).to_have_count(0)
        page.goto(f"{api.url}/#/jobs/none")
        expect(alerts).to_contain_text("This job does not exist, or no longer")
        shown.forgive("404", "422", "429")


def test_a_dropped_video(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """It waits for its options and the start, and is sent with them."""
    api = serve_api()
    with view(browser, api.url) as shown:
        page = shown.page
        drop = """async (data) => {
          const transfer = new DataTransfer();
          const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
          transfer.items.add(new File([bytes], "dropped.mp4", { type: "video/mp4" }));
          const init = { dataTransfer: transfer, bubbles: true, cancelable: true };
          const zone = document.querySelector(".zone");
          for (const kind of ["dragenter", "dragover", "drop"]) zone.dispatchEvent(new DragEvent(kind, init));
        }"""
        expect(page.locator(".zone")).to_be_visible()
        page.evaluate(drop, b64encode(clip.read_bytes()).decode())
        expect(page.locator(".chosen")).to_contain_text("dropped.mp4")
        page.get_by_label("Ask the language model").select_option("Only where the detector sees somebody")
        page.get_by_label("Make an annotated video").uncheck()
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("link", name="dropped.mp4")).to_be_visible()
    (job,) = api.store.page(state=None, limit=9, before=None)
    assert (job.options.gate, job.options.annotate) == ("detections", False)
    assert api.data.folder(job.id).upload.read_bytes() == clip.read_bytes()


def test_a_video_on_the_server(browser: Browser, serve_api: ServeApi, clip: Path, tmp_path: Path) -> None:
    """It is named by its path; what may not be read is told."""
    (tmp_path / "media").mkdir()
    video = tmp_path / "media" / "there.mp4"
    video.write_bytes(clip.read_bytes())
    api = serve_api()
    with view(browser, api.url) as shown:
        page = shown.page
        page.get_by_text("The video is somewhere else").click()
        check_names_and_room(shown)
        source = page.get_by_label("Web address, or path on the server")
        for path in (clip, video):
            source.fill(str(path))
            source.press("Enter")
        expect(page.get_by_role("link", name="there.mp4")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("under a media root")
        shown.forgive("403")
    (job,) = api.store.page(state=None, limit=9, before=None)
    assert (job.name, job.options.annotate) == ("there.mp4", True)


def test_a_connection_that_breaks(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """It is told, and tried again until it holds; what has come meanwhile is there."""
    api = serve_api()
    enter(api.data, api.store, "waiting", clip)
    with view(browser, api.url) as shown:
        page = shown.page
        page.route("**/events", lambda route: route.abort())
        page.goto(f"{api.url}/#/jobs/waiting")
        expect(page.get_by_role("alert")).to_contain_text("The connection to the server is lost. Trying again…")
        api.store.ask_cancel("waiting")
        page.unroute("**/events")
        expect(page.locator(".title .state")).to_have_text("Cancelled")
        expect(page.get_by_role("alert")).to_have_count(0)
        shown.wrong[:] = [text for text in shown.wrong if "ERR_FAILED" not in text]


def test_a_live_source_that_begins_anew(browser: Browser, serve_api: ServeApi) -> None:
    """Answers of another run, whose numbers are the same again, take the place of those before."""
    api = serve_api()
    enter(api.data, api.store, "live", Path("camera"), live=True)
    api.store.start("live")
    journal = api.data.folder("live").path / JOURNAL_NAME
    journal.write_text("".join(run_of("first", 2)))
    with view(browser, api.url) as shown:
        shown.page.goto(f"{api.url}/#/jobs/live")
        expect(shown.page.locator("h1")).to_have_text("camera (live)")
        expect(shown.page.locator(".answer")).to_have_count(2)
        journal.rename(journal.with_name("results-000001.jsonl"))
        journal.write_text("".join(run_of("second", 1)))
        expect(shown.page.locator(".answer")).to_have_count(1)


def run_of(name: str, slots: int) -> Iterator[str]:
    """The journal of a run, line by line."""
    yield f'{{"type":"header","run":"{name}"}}\n'
    for n in range(slots):
        yield f"{SlotRecord(index=n, key_indices=(1,), start_s=n, end_s=n, state='ok').model_dump_json()}\n"


def test_hours_of_slots(browser: Browser, serve_api: ServeApi, clip: Path) -> None:
    """Thousands of slots are drawn as few shapes, and shown a page at a time; close up each can be chosen."""
    api = serve_api()
    add_ended(api, clip, slots=3000)
    (api.data.folder("done").path / VIDEO_NAME).unlink()  # it has no such hours
    with view(browser, f"{api.url}/#/jobs/done") as shown:
        page = shown.page
        expect(page.locator(".stages path")).to_have_count(3)
        assert page.locator(".stages *").count() < 200
        expect(page.locator(".answer")).to_have_count(24)
        page.get_by_role("button", name="Later").last.click()
        expect(page.locator(".answer").first).to_have_attribute("data-slot", "24")
        for _ in range(5):
            page.get_by_role("button", name="Zoom in").click()
        middle = page.locator(".stages .slot").nth(3)
        middle.click()
        chosen = middle.get_attribute("data-slot")
        assert chosen
        assert int(chosen) > 1000
        expect(page.locator(".answer[aria-current]")).to_have_attribute("data-slot", chosen)
        expect(page.locator(".answer[aria-current]")).to_contain_text("This frame cannot be shown.")
        shown.forgive("404")
