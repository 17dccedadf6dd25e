"""Makes the demo clip and the truth beside it: `python -m serving.demo.make_clip`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av

from serving.demo.clip_script import FPS, FRAMES, KEYFRAME_INTERVAL, SIZE, SLOT_FRAMES, demo_scene, frame_time_s
from serving.demo.figure import Frame
from serving.demo.scene import Person, Scene
from serving.demo.world import VISIBLE, slot_action

FOLDER = Path(__file__).parent


def main() -> None:
    """Write `clip.mp4` and `clip_truth.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for clip.mp4 and clip_truth.json")
    out: Path = parser.parse_args().out
    scene = demo_scene()
    write_video(out / "clip.mp4", frames(scene))
    (out / "clip_truth.json").write_text(truth_json(truth(scene)))


def frames(scene: Scene) -> Iterator[Frame]:
    """The pictures of the clip, `(360, 640, 3)` uint8 RGB, before they are encoded."""
    for index in range(FRAMES):
        yield scene.render(frame_time_s(index), SIZE)[0]


def write_video(path: Path, pictures: Iterator[Frame]) -> None:
    """Encode pictures as H.264 in MP4, playable everywhere and from its first bytes on."""
    height, width = SIZE
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "22", "preset": "slow", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def truth(scene: Scene) -> dict[str, Any]:
    """What is true of every frame and every slot of the clip.

    Boxes are x1, y1, x2, y2 in pixels of the frame; only people who are well visible are listed. `key_indices` count
    frames from 1.
    """
    people = [_counted(scene.persons_at(frame_time_s(index), SIZE)) for index in range(FRAMES)]
    keys = list(range(KEYFRAME_INTERVAL, FRAMES + 1, KEYFRAME_INTERVAL))
    slots = [keys[start : start + SLOT_FRAMES] for start in range(0, len(keys), SLOT_FRAMES)]
    return {
        "fps": FPS,
        "width": SIZE[1],
        "height": SIZE[0],
        "frames": [
            {"index": index, "persons": [_described(person) for person in found]} for index, found in enumerate(people)
        ],
        "slots": [
            {"index": index, "key_indices": slot, "action": slot_action([people[key - 1] for key in slot]) or "none"}
            for index, slot in enumerate(slots)
        ],
    }


def truth_json(content: dict[str, Any]) -> str:
    """The truth as it is written: one line for each frame and each slot."""
    lines = {name: ",\n  ".join(json.dumps(entry) for entry in content[name]) for name in ("frames", "slots")}
    head = json.dumps({name: content[name] for name in ("fps", "width", "height")})[:-1]
    return f'{head},\n "frames": [\n  {lines["frames"]}],\n "slots": [\n  {lines["slots"]}]}}\n'


def _counted(persons: list[Person]) -> list[Person]:
    return [person for person in persons if person.visible > VISIBLE]


def _described(person: Person) -> dict[str, Any]:
    height, width = SIZE
    box = [round(part * side, 2) for part, side in zip(person.box, (width, height, width, height), strict=True)]
    return {"actor": person.actor, "action": person.action, "box": box, "visible": round(person.visible, 3)}


if __name__ == "__main__":
    main()
