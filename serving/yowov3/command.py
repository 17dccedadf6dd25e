"""`zroact export-yowov3`: a user's own YOWOv3, as code and weights, to the ONNX file that Stage 1 runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import onnx
import typer

from pipeline_ver2.errors import ConfigError
from serving.yowov3.checkout import build, importable
from serving.yowov3.export import differences, to_onnx
from serving.yowov3.settings import read_settings
from serving.yowov3.weights import read_weights

EXIT_USAGE = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def export_yowov3(
    repo: Annotated[Path, typer.Option(help="Your checkout of YOWOv3.")],
    config: Annotated[Path, typer.Option(help="The YAML file the network was trained with.")],
    weights: Annotated[Path, typer.Option(help="Its checkpoint.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    labels: Annotated[Path | None, typer.Option(help="Class names, one a line; default idx2name of --config.")] = None,
    clip_length: Annotated[int | None, typer.Option(min=1, help="Frames of a clip; default that of --config.")] = None,
    *,
    fp16: Annotated[bool, typer.Option("--fp16", help="float16 instead of float32.")] = False,
    check: Annotated[bool, typer.Option(help="Compare the file with the network before it is written.")] = True,
) -> None:
    """Write your YOWOv3 as the ONNX file that Stage 1 runs, and compare it with PyTorch."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of optional packages that are not there
    try:
        repo, out, weights = repo.absolute(), out.absolute(), weights.absolute()
        settings = read_settings(config.absolute(), labels_file=labels and labels.absolute(), clip_length=clip_length)
        tensors = read_weights(weights)
        with importable(repo):
            network = build(repo, settings, tensors, weights)
            proto = to_onnx(network, settings, half=fp16)
            for each in differences(network, proto, settings) if check else ():
                typer.echo(f"batch {each.batch}: boxes differ by {each.box_px:.2g} px, scores by {each.score:.2g}")
        _write(proto, out)
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
    told = (
        f"{len(settings.labels)} labels, clips of {settings.clip_length} frames, {settings.side} x {settings.side} px"
    )
    typer.echo(f"{out}: {told}, {'float16' if fp16 else 'float32'}; name it in stage1.model_path")


def _write(proto: onnx.ModelProto, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        onnx.save_model(proto, str(out))
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error
