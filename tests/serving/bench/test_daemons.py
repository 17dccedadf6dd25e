"""Where and on what benchmarks run."""

from __future__ import annotations

from pathlib import Path

from pipeline_ver2.main import probe_video
from serving.bench.daemons import CLIP, demo_config, emulated_config, free_ports, temporary_folder
from serving.bench.ideal import Workload


def test_the_clip_is_the_workload_s() -> None:
    """The demo clip has the documented number of frames at the grid's rate."""
    info = probe_video(CLIP)
    assert (info.frames_header, info.fps) == (Workload().frames, 30)


def test_ports_are_not_given_out_twice() -> None:
    """Two daemons do not get the same port."""
    assert len(set(free_ports(5))) == 5


def test_a_folder_is_gone_afterwards() -> None:
    """Nothing is left of a benchmark but its report."""
    with temporary_folder() as folder:
        (folder / "file").touch()
    assert not folder.exists()


def test_emulated_engines_have_the_workload_s_times(tmp_path: Path) -> None:
    """Service times, batch size and the row's limit, which is the window and the daemon's limit."""
    config = emulated_config(tmp_path, Workload(), 3)
    assert (config.stage1.engine, config.stage2.engine) == ("emulated", "emulated")
    assert (config.stage1.emulated.service_s, config.stage2.emulated.service_s) == (0.174, 2.07)
    assert config.stage2.emulated.per_extra_s == 0
    assert (config.stage1.batch_size, config.stage1.max_batch) == (4, 4)
    assert (config.pipeline.stage2_window, config.stage2.limit) == (3, 3)


def test_everything_lies_in_the_folder(tmp_path: Path) -> None:
    """The folder is the media root, so that the baseline's frames may be read from it."""
    config = demo_config(tmp_path)
    assert config.paths.media_roots == (tmp_path,)
    assert config.paths.work_dir.is_relative_to(tmp_path)


def test_the_demo_takes_the_embedded_models(tmp_path: Path) -> None:
    """No model is named, so each daemon takes the one that is shipped."""
    config = demo_config(tmp_path)
    assert (config.stage1.engine, config.stage1.model_path) == ("onnx", None)
    assert (config.stage2.engine, config.stage2.model) == ("transformers", None)
