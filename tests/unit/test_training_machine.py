"""What a training sets in its process before a library computes anything."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from transformers import modeling_flash_attention_utils as flash

from mpadam.study.spec import RunSpec
from mpadam.training import machine
from mpadam.training.provenance import environment
from tests.unit.training_runs import make_data, run_spec


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in machine.DETERMINISM:
        monkeypatch.setenv(name, "0")  # so that it is taken back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "_check", lambda spec: None)  # there is no GPU
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced


def flash_attn_func(q, k, v, *, dropout_p=0.0, softmax_scale=None, causal=False, deterministic=False):
    """Has the parameters of FlashAttention 2.8 that Transformers looks for."""


def asked_of_flash_attention() -> dict[str, object]:
    """What Transformers gives FlashAttention for a call of ours."""
    return flash._lazy_define_process_function(flash_attn_func)(query_length=8, key_length=8, is_causal=True)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    data = make_data(tmp_path_factory.mktemp("machine"))
    return run_spec(data, device="cuda", attention="flash_attention_2")


def test_i18_flash_attention_is_asked_for_its_deterministic_backward_pass_and_the_run_tells_so(spec: RunSpec) -> None:
    assert asked_of_flash_attention()["deterministic"] is False
    machine.configure(spec)
    assert asked_of_flash_attention()["deterministic"] is True
    assert environment("cpu")["determinism"] == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "FLASH_ATTENTION_DETERMINISTIC": "1",
    }


def test_a_run_on_a_cpu_sets_and_tells_nothing_of_it(spec: RunSpec) -> None:
    training = spec.training.model_copy(update={"device": "cpu"})
    machine.configure(spec.model_copy(update={"training": training}))
    assert environment("cpu")["determinism"] == {}
    assert not [name for name in machine.DETERMINISM if name in os.environ]
