"""Somebody else's code: it is run where it expects to be, strictly given its weights, and leaves nothing behind."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline_ver2.errors import ConfigError
from serving.yowov3.checkout import build, importable
from serving.yowov3.settings import read_settings
from serving.yowov3.weights import read_weights
from tests.yowov3_repo import Checkout, write_checkout


def built(checkout: Checkout) -> torch.nn.Module:
    """Its network, by the way of the command."""
    weights = read_weights(checkout.weights)
    with importable(checkout.repo):
        return build(checkout.repo, read_settings(checkout.config), weights, checkout.weights)


def test_the_network_gets_the_weights_of_the_checkpoint(checkout: Checkout) -> None:
    """Though the constructor ran a clip through it and no pretrained file of a backbone is there."""
    network = built(checkout)
    assert not network.training
    state, expected = network.state_dict(), checkout.state()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_nothing_is_left_behind(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, path and working directory are as before; a package with a name as common is not mistaken for it."""
    ours = types.ModuleType("utils")
    monkeypatch.setitem(sys.modules, "utils", ours)
    before = (set(sys.modules), list(sys.path), list(sys.meta_path), Path.cwd())
    built(checkout)
    assert sys.modules["utils"] is ours
    assert not {name for name in set(sys.modules) - before[0] if name.split(".")[0] in {"model", "utils"}}
    assert (list(sys.path), list(sys.meta_path), Path.cwd()) == before[1:]


def test_an_installed_package_of_a_common_name_is_no_hindrance(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regular package `utils` elsewhere on the path would win over the checkout's, which has no `__init__.py`."""
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert built(checkout).state_dict().keys() == checkout.state().keys()


@pytest.mark.fault("A2")
@pytest.mark.parametrize("lenient", [False, True])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, *, lenient: bool) -> None:
    """Also where the network's own loader would take what fits and keep quiet about the rest."""
    checkout = write_checkout(tmp_path, lenient=lenient)
    state = checkout.state()
    state["head.convs.9.bias"] = state.pop("head.convs.0.bias")
    torch.save(state, checkout.weights)
    with pytest.raises(ConfigError) as caught:
        built(checkout)
    told = str(caught.value)
    assert told.startswith(f"--weights {checkout.weights} does not fit the network of --config")
    assert "head.convs.0.bias" in told
    assert "head.convs.9.bias" in told


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("model/TSN/YOWOv3.py", None, "is no checkout of YOWOv3: it has no model/TSN/YOWOv3.py"),
        ("model/TSN/YOWOv3.py", "", "model.TSN.YOWOv3 has no function build_yowov3"),
        ("model/TSN/YOWOv3.py", "import a_package_nobody_has", "cannot be imported: ModuleNotFoundError: No module"),
        ("model/TSN/YOWOv3.py", "def", "cannot be imported: SyntaxError"),
        ("model/TSN/YOWOv3.py", "def build_yowov3(config): return config['depth']['x']", "the key 'depth' is missing"),
        ("model/TSN/YOWOv3.py", "def build_yowov3(config): return {}['mode']", "failed: KeyError: 'mode'"),
        ("model/TSN/YOWOv3.py", "def build_yowov3(config): return 1 / 0", "failed: ZeroDivisionError"),
        ("model/TSN/YOWOv3.py", "def build_yowov3(config): return 1", "gave no network but int"),
        ("model/size.txt", None, "failed: FileNotFoundError"),
        ("model/size.txt", "64", "failed: AssertionError"),
    ],
)
def test_what_a_checkout_lacks_is_told(tmp_path: Path, file: str, text: str | None, said: str) -> None:
    """One line, whatever its code raises; nothing of it stays imported."""
    checkout = write_checkout(tmp_path)
    (checkout.repo / file).unlink()
    if text is not None:
        (checkout.repo / file).write_text(text)
    with pytest.raises(ConfigError) as caught:
        built(checkout)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [name for name in sys.modules if name.split(".")[0] == "model"]


def test_a_key_that_only_the_checkout_knows_is_asked_for(tmp_path: Path) -> None:
    """The configuration is passed on as it is, so that missing keys show up in the checkout's code."""
    changes: dict[str, Any] = {"mode": None}
    with pytest.raises(ConfigError, match="the key 'mode' is missing"):
        built(write_checkout(tmp_path, **changes))
