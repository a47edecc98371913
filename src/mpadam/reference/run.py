"""The run.yaml of a launch command, for data that are prepared."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpadam.reference.study import run_of
from mpadam.study.auto import auto_here
from mpadam.study.load import merge, parse_study
from mpadam.study.run_folder import read_json
from mpadam.study.spec import RunFile, resolve, run_request


def run_file(content: Mapping[str, Any], *, data: Path, run_dir: Path) -> RunFile:
    """What `run.yaml` in `run_dir` has to say.

    content: the study of the command (`Translation.content`).
    data: folder of prepared data, with manifest.json; its text and tokenizer are what the run trains on.
    Raises ValueError where the data are cut otherwise than the command says, or do not suffice.
    """
    manifest = read_manifest(data)
    settings = manifest["request"]["sequences"]
    _check_cut(content["data"], settings, data)
    config = parse_study(merge(content, {"data": settings}))
    request = run_request(config, run_of(config))
    return resolve(
        request,
        manifest=manifest,
        selected={},
        data=os.path.relpath(data, run_dir),
        auto=auto_here(request),
    )


def read_manifest(data: Path) -> dict[str, Any]:
    """The manifest of prepared data.

    Raises ValueError where there is none.
    """
    manifest = read_json(data / "manifest.json")
    if manifest is None or "request" not in manifest:
        raise ValueError(f"--data {data}: no manifest.json of prepared data; make it with  mpadam data --out {data}")
    return manifest


def _check_cut(wanted: Mapping[str, Any], settings: Mapping[str, Any], data: Path) -> None:
    flags = {"sequence_length": "max_length", "validation_tokens": "num_eval_tokens"}
    for key, flag in flags.items():
        if key in wanted and wanted[key] != settings[key]:
            raise ValueError(
                f"--{flag} {wanted[key]}: the data in {data} were prepared with {key} {settings[key]}; prepare them "
                f"anew, or write  --{flag} {settings[key]}"
            )
