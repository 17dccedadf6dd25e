"""The annotated video in a real browser: it plays to its end, with every frame and its sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.overlay import annotate
from tests.browser import chromium, view
from tests.pipeline_ver2.test_films import VARIABLE
from tests.scenes import film
from tests.videos import ffmpeg

FULL_CHROMA = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "12", "-pix_fmt", "yuv444p")

PLAY = """async video => {
  await new Promise((resolve, reject) => {
    video.onended = resolve;
    video.onerror = () => reject(video.error.message);
    video.playbackRate = 4;
    video.play().catch(reject);
  });
  return [video.duration, video.videoWidth, video.videoHeight, video.webkitAudioDecodedByteCount > 0];
}"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "audio"), [("pcm.mkv", "pcm_s16le"), ("opus.mkv", "libopus")])
def test_a_browser_plays_it_to_its_end(name: str, audio: str, tmp_path: Path) -> None:
    """From full chroma, an odd size, a varying frame rate and sound of any codec."""
    pictures = film("browser.mkv", *FULL_CHROMA, size=(161, 121), kept=VARIABLE)
    sound = ("-f", "lavfi", "-i", "sine=d=2:r=48000")
    source = ffmpeg(f"browser-{name}", "-i", str(pictures.path), *sound, "-c:v", "copy", "-c:a", audio)
    annotate(source, tmp_path / "annotated.mp4", keyframes=[])
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>video</title><video src=annotated.mp4 muted></video>")
    with chromium() as browser, view(browser, page.as_uri()) as shown:
        played: Any = shown.page.locator("video").evaluate(PLAY)
    assert played == [pytest.approx(2, abs=1 / 6), 162, 122, True]
