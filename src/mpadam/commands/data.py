"""`mpadam data`: Prepare a study's data (text, tokenizer, token files, manifest), or inspect it: mpadam data inspect.

The arguments that say which study are shared with `mpadam tokenizer`, `tokenize` and `download`.

    mpadam data --config config.yaml --config studies/smoke.yaml --out results/smoke/data
    mpadam data inspect --out results/smoke/data --sequences 5
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mpadam.arguments import Namespace, argument, one_of

if TYPE_CHECKING:
    from mpadam.study.section import Section
    from mpadam.study.text import DataConfig, TokenizerConfig

AnySection = TypeVar("AnySection", bound="Section")
log = partial(print, flush=True)

_NAMED = (
    argument(
        "--config",
        type=Path,
        action="append",
        metavar="FILE",
        help="study configuration; may be repeated, later ones win",
    ),
    argument("--request", metavar="JSON", help='the two sections themselves: {"data": {...}, "tokenizer": {...}}'),
)
#: the study, and its data folder: shared by the commands of the data room
WHICH_STUDY = one_of(*_NAMED, required=True)
DATA_FOLDER = argument("--out", type=Path, required=True, metavar="FOLDER", help="results/<study>/data")
ARGUMENTS = (
    argument(
        "action",
        nargs="?",
        choices=["prepare", "inspect"],
        default="prepare",
        help="inspect: documents, tokens, padding, lengths and some sequences of prepared data (default: prepare)",
    ),
    one_of(*_NAMED),
    DATA_FOLDER,
    argument(
        "--assemble",
        action="store_true",
        help="only write the manifest of what mpadam tokenizer and mpadam tokenize left in the folder",
    ),
    argument("--workers", type=int, default=1, metavar="N", help="shards tokenized at the same time"),
    argument("--sequences", type=int, default=3, metavar="N", help="sequences to show (inspect)"),
    argument("--seed", type=int, default=0, help="whose order the sequences are from (inspect)"),
)


def run(args: Namespace) -> int:
    if args.action == "inspect":
        from mpadam.data.inspection import inspection

        log(inspection(args.out, sequences=args.sequences, seed=args.seed))
        return 0
    if args.config is None and args.request is None:
        raise ValueError("say which study:  --config FILE  (repeated, later ones win), or  --request JSON")
    _report(args.out, _prepared(args))
    return 0


def _prepared(args: Namespace) -> dict[str, Any]:
    from mpadam.data.stages import assemble, prepare

    if args.workers < 1:
        raise ValueError(f"--workers {args.workers}: at least 1")
    sections = study_sections(args)
    if args.assemble:
        manifest = assemble(*sections, args.out)
        log(f"{args.out}: {len(manifest['shards'])} shards")
        return manifest
    if args.workers > 1:  # they share the cores: each encodes with one thread, which the tokenizer's library reads here
        os.environ["RAYON_NUM_THREADS"] = "1"
    return prepare(*sections, args.out, log=log, workers=args.workers)


def _report(out: Path, manifest: dict[str, Any]) -> None:
    train, targets = manifest["train"], manifest["validation_set"]["target_tokens"]
    log(
        f"{out}: {train['documents']:,} training documents, {train['tokens']:,} tokens, "
        f"{manifest['train_sequences']:,} sequences ({train['padding_share']:.1%} padding); "
        f"validation {targets:,} target tokens, unigram entropy {manifest['unigram_entropy']:.3f} nats"
    )


def study_sections(args: Namespace) -> tuple[DataConfig, TokenizerConfig]:
    """The sections `data` and `tokenizer` of the study; with the C4 shards that its budgets need, where it names none.

    Raises ValueError when the request is no JSON or a section is missing or wrong.
    """
    from mpadam.plan.needs import planned
    from mpadam.study.load import load_study
    from mpadam.study.text import DataConfig, TokenizerConfig

    if args.request is None:
        study = load_study(args.config)
        return planned(study), study.tokenizer
    request = _request(args)
    if set(request) != {"data", "tokenizer"}:
        raise ValueError('--request: write {"data": {...}, "tokenizer": {...}}, with these two keys')
    return _section("data", DataConfig, request), _section("tokenizer", TokenizerConfig, request)


def data_section(args: Namespace) -> DataConfig:
    """The section `data` alone, for commands that need no other.

    Raises ValueError as `study_sections`.
    """
    if args.request is None:
        return study_sections(args)[0]
    from mpadam.study.text import DataConfig

    request = _request(args)
    if "data" not in request or set(request) - {"data", "tokenizer"}:
        raise ValueError('--request: write {"data": {...}}')
    return _section("data", DataConfig, request)


def _request(args: Namespace) -> dict[str, Any]:
    try:
        content = json.loads(args.request)
    except json.JSONDecodeError as error:
        raise ValueError(f"--request: not JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def _section(name: str, model: type[AnySection], request: dict[str, Any]) -> AnySection:
    from pydantic import ValidationError

    from mpadam.study.section import first_fault

    try:
        return model.model_validate(request[name])
    except ValidationError as error:
        raise ValueError(f"--request: {first_fault(error, root=name)}") from None
