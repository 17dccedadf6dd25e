"""Loading, merging and checking the configuration, and the files that are shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config, child_environment, load_config, parse_value, visible_gpu
from pipeline_ver2.errors import ConfigError

ROOT = Path(__file__).parents[2]


def write(file: Path, content: object) -> Path:
    """Write a configuration file."""
    file.write_text(json.dumps(content))
    return file


def test_the_shipped_file_spells_out_every_key_with_its_default() -> None:
    """config.json is the list of all keys, and changes nothing."""
    assert json.loads((ROOT / "config.json").read_text()) == Config().model_dump(mode="json")


def test_the_shipped_file_has_paths_beside_itself() -> None:
    """Its relative paths lead into the folder it lies in, wherever the program was called."""
    config = load_config(ROOT / "config.json", environ={})
    assert config.paths.readable_roots == (ROOT / "media", ROOT / "out", ROOT / "work")


def test_the_production_profile() -> None:
    """The A6000 profile asks for CUDA and vLLM with the real model, and leaves the rest as it is."""
    config = load_config(ROOT / "serving/profiles/a6000.json", environ={})
    assert (config.stage1.provider, config.stage2.engine) == ("cuda", "vllm")
    assert config.stage2.model == "Qwen/Qwen3.5-2B"
    assert config.stage1.model_path == Path.home() / "zroact/models/yowov3.onnx"
    assert config.pipeline == Config().pipeline


def test_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file the defaults hold, with paths below the current folder."""
    monkeypatch.chdir(tmp_path)
    config = load_config(environ={})
    assert config.stage1 == Config().stage1
    assert config.paths.work_dir == tmp_path / "work"


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line over environment over file over default."""
    monkeypatch.chdir(tmp_path)
    stage2 = {"limit": 3, "max_queue": 3, "max_tokens": 3}
    write(tmp_path / "config.json", {"stage2": stage2})
    environ = {"ZROACT_STAGE2__LIMIT": "4", "ZROACT_STAGE2__MAX_QUEUE": "4"}
    config = load_config(overrides={"stage2.limit": 5, "stage2.max_tokens": None}, environ=environ)
    chosen = (config.stage2.limit, config.stage2.max_queue, config.stage2.max_tokens, config.stage2.port)
    assert chosen == (5, 4, 3, 8002)


def test_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file named on the command line, else the one of the environment, else ./config.json."""
    monkeypatch.chdir(tmp_path)
    named = write(tmp_path / "named.json", {"stage1": {"port": 1}})
    from_environment = write(tmp_path / "environment.json", {"stage1": {"port": 2}})
    environ = {"ZROACT_CONFIG": str(from_environment)}
    assert load_config(named, environ=environ).stage1.port == 1
    assert load_config(environ=environ).stage1.port == 2
    write(tmp_path / "config.json", {"stage1": {"port": 3}})
    assert load_config(environ={}).stage1.port == 3


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in a file are relative to the file, absolute ones stay, and ~ is the home folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    content = {"paths": {"work_dir": "here", "data_dir": "/data", "media_roots": ["../films", "~/films"]}}
    file = write(tmp_path / "etc/config.json", content)
    paths = load_config(file, environ={}).paths
    assert paths.work_dir == tmp_path / "etc/here"
    assert paths.data_dir == Path("/data")
    assert paths.media_roots == (tmp_path / "films", Path.home() / "films")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"stage3": {}}, "stage3: unknown key"),
        ({"stage1": {"prot": 8001}}, "stage1.prot: unknown key"),
        ({"stage1": {"port": 70000}}, "stage1.port: .*70000"),
        ({"stage1": {"port": "many"}}, "stage1.port: .*many"),
        ({"stage1": {"batch_size": 9}}, "stage1: .*batch_size 9 is over max_batch 8"),
        ({"stage2": {"engine": "remote"}}, "stage2: .*remote_url"),
        ({"stage2": {"engine": "magic"}}, "stage2.engine: .*magic"),
        ({"pipeline": {"grid_fps": 0}}, "pipeline.grid_fps: "),
        ({"pipeline": {"keyframe_interval": 0}}, "pipeline.keyframe_interval: "),
        ({"paths": {"work_dir": 7}}, "paths.work_dir: "),
        ({"paths": 7}, "paths: "),
        ([], "must hold a JSON object, not list"),
    ],
)
def test_what_cannot_be_stops_the_start_and_names_the_key(tmp_path: Path, content: object, said: str) -> None:
    """Unknown keys and impossible values are errors, with the file and the key."""
    file = write(tmp_path / "bad.json", content)
    with pytest.raises(ConfigError, match=rf"bad\.json.*{said}"):
        load_config(file, environ={})


@pytest.mark.parametrize("text", ["", "{", "{} {}", "nonsense"])
def test_a_file_that_is_no_json(tmp_path: Path, text: str) -> None:
    """A broken file is named."""
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.json is not valid JSON"):
        load_config(file, environ={})


def test_a_file_without_end_is_refused() -> None:
    """It is not read to the end."""
    with pytest.raises(ConfigError, match="/dev/zero has over 10 MB"):
        load_config(Path("/dev/zero"), environ={})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that was named and is missing is an error, not the defaults."""
    with pytest.raises(ConfigError, match=r"missing\.json: No such file"):
        load_config(tmp_path / "missing.json", environ={})
    with pytest.raises(ConfigError, match=r"missing\.json: No such file"):
        load_config(environ={"ZROACT_CONFIG": str(tmp_path / "missing.json")})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"ZROACT_STAGE2__LIMTI": "3"}, "stage2.limti: unknown key"),
        ({"ZROACT_STAGE2__LIMIT": "none"}, "stage2.limit: .*none"),
        ({"ZROACT_STAGE2__LIMIT": "0"}, "stage2.limit: .*greater than or equal to 1"),
        ({"ZROACT_STAGE2__LIMIT": '{"min": 4, "max": 2}'}, "stage2.limit: .*min 4 is over max 2"),
        ({"ZROACT_STAGE2__LIMIT": '{"max": 8, "low": 2}'}, "stage2.limit.low: unknown key"),
        ({"ZROACT_STAGE2__LIMIT__DEEP": "3", "ZROACT_STAGE2__LIMIT": "3"}, "ZROACT_STAGE2__LIMIT__DEEP: .* no section"),
    ],
)
def test_a_bad_variable_is_named(environ: dict[str, str], said: str) -> None:
    """The environment is checked as the file is."""
    with pytest.raises(ConfigError, match=said):
        load_config(environ=environ)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("null", None), ('["a"]', ["a"]), ("cpu", "cpu"), ("", ""), ("1e", "1e")],
)
def test_values_from_text(text: str, value: object) -> None:
    """JSON where it is JSON, else the text itself."""
    assert parse_value(text) == value


def test_grid_can_be_switched_off() -> None:
    """null means the native frames."""
    assert load_config(environ={"ZROACT_PIPELINE__GRID_FPS": "null"}).pipeline.grid_fps is None


def test_a_url_stands_over_host_and_port() -> None:
    """Clients go to the URL where one is given, without a slash at its end."""
    content: dict[str, Any] = {"stage1": {"url": "http://gpu:9/"}, "stage2": {"port": 9}}
    config = Config.model_validate(content)
    assert (config.stage1.base_url, config.stage2.base_url) == ("http://gpu:9", "http://127.0.0.1:9")
    assert Config.model_validate({"stage1": {"host": "::1"}}).stage1.base_url == "http://[::1]:8001"


def test_a_loaded_configuration_cannot_be_changed() -> None:
    """It is frozen."""
    config = Config()
    with pytest.raises(ValueError, match="frozen"):
        config.stage1.port = 1  # type: ignore[misc]


def test_children_get_no_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that gets its configuration in a file must not see ours twice."""
    monkeypatch.setenv("ZROACT_STAGE2__LIMIT", "3")
    monkeypatch.setenv("UNRELATED", "kept")
    environment = child_environment({"ADDED": "1"})
    assert "ZROACT_STAGE2__LIMIT" not in environment
    assert (environment["UNRELATED"], environment["ADDED"]) == ("kept", "1")


@pytest.mark.parametrize(("limit", "most"), [("3", 3), ('{"max": 8}', 8)])
def test_a_limit_is_a_number_or_a_range(limit: str, most: int) -> None:
    """Either form of `stage2.limit` says how many requests there can be at most."""
    assert load_config(environ={"ZROACT_STAGE2__LIMIT": limit}).stage2.most_at_once == most


def test_the_short_name_of_the_database() -> None:
    """The URL of the queue has a variable of its own, as services that hand out databases expect."""
    config = load_config(environ={"ZROACT_DATABASE_URL": "postgresql://db/jobs"})
    assert config.serving.database_url == "postgresql://db/jobs"


@pytest.mark.parametrize(("value", "first"), [("", ""), ("-1", "-1"), ("2", "2"), ("GPU-ab, 1", "GPU-ab")])
def test_the_gpu_that_cuda_takes_first(value: str, first: str) -> None:
    """Named by CUDA's own variable; without it any is visible."""
    assert visible_gpu({"CUDA_VISIBLE_DEVICES": value}) == first
    assert visible_gpu({}) is None
