"""The sections data and tokenizer: each source has its keys, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from hub_server import COMMIT

from mpadam.study.text import DataConfig, TokenizerConfig

LLAMA = {"repo": "hf-internal-testing/llama-tokenizer", "revision": COMMIT}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"source": "c4_hub"},
            "source 'c4_hub' needs a revision, e.g.  revision: 1588ec454efa1a09f29cd18ddd04fe05fc8653a2",
        ),
        ({"source": "c4_hub", "revision": "main"}, "revision 'main' is no commit: write its 40 hexadecimal digits"),
        ({"source": "builtin", "revision": COMMIT}, "revision is for source 'c4_hub', and this is 'builtin'"),
        ({"source": "c4_folder"}, "source 'c4_folder' needs a path, e.g.  path: /data/c4"),
        ({"source": "saved_dataset", "path_train": "a"}, "needs a path_validation, e.g.  path_validation: /data/c4_v"),
        ({"source": "saved_dataset", "path": "a"}, "path is for source 'c4_folder', and this is 'saved_dataset'"),
        ({"source": "builtin", "train_shards": 3}, "train_shards is for C4; 'builtin' is used whole"),
        (
            {"source": "c4_hub", "revision": COMMIT, "shard_jobs": False},
            "by one job per shard; write  shard_jobs: null",
        ),
    ],
)
def test_data_keys(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        DataConfig.model_validate(section)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"source": "hub", "repo": "a/b"},
            "source 'hub' needs revision, e.g.  revision: d02ad6cb9dd2c2296a6332199fa2fdca5",
        ),
        ({"source": "hub", **LLAMA, "path": "a"}, "source 'hub' takes no path: write  path: null"),
        ({"source": "hub", **LLAMA, "revision": "v1"}, "revision 'v1' is no commit"),
        ({"source": "folder", "path": "a", "repo": "a/b"}, "source 'folder' takes no repo: write  repo: null"),
        ({"source": "bpe", "vocab_size": 300, "eos_token": "</s>"}, "an end-of-text token of its own"),
    ],
)
def test_tokenizer_keys(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        TokenizerConfig.model_validate(section)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "by_shard"),
    [
        ({"source": "c4_hub", "revision": COMMIT}, True),
        ({"source": "c4_folder", "path": "a"}, False),
        ({"source": "c4_folder", "path": "a", "shard_jobs": True}, True),
        ({"source": "builtin"}, False),
    ],
)
def test_a_job_a_shard(section: dict[str, Any], by_shard: bool) -> None:
    assert DataConfig.model_validate(section).by_shard is by_shard
