"""Which state belongs to which parameter: names, shapes, exchanged parameters, other tensors behind a parameter."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from mpadam import AdamW, Madam, MPlusAdam
from mpadam.optim.base import LowPrecisionOptimizer

#: how a weight can be kept: alone, with a carry, as a master, as codes
KINDS: dict[str, dict[str, Any]] = {
    "weight": {},
    "kahan": {"write_back": "kahan"},
    "master": {"weight_format": "fp32"},
    "codes": {"weight_format": "fp8_e4m3", "write_back": "stochastic"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
Named = dict[str, nn.Parameter]


def parameters(*names: str, shape: tuple[int, ...] = (4, 6)) -> Named:
    """Values by name, whatever the order."""
    return {
        n: nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(ord(n[-1]))).bfloat16())
        for n in names
    }


def build(named: Named, kind: str = "weight", **options: Any) -> MPlusAdam:
    return MPlusAdam(named.items(), lr=1e-2, lr_mult=1e-2, seed=1, **KINDS[kind], **options)


def train(optimizer: torch.optim.Optimizer, named: Named, first: int = 1, last: int = 3) -> None:
    for t in range(first, last + 1):
        for name, p in named.items():
            seed = torch.Generator().manual_seed(100 * t + ord(name[-1]))
            p.grad = torch.randn(p.shape, generator=seed).to(p.dtype)
        optimizer.step()


def ends(optimizer: LowPrecisionOptimizer, named: Named) -> dict[str, Tensor]:
    found = {}
    for name, p in named.items():
        state = {k: v for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
        found |= {f"{name}.{k}": v.clone() for k, v in state.items()} | {name: p.detach().clone()}
    return found


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def load_weights(into: Named, of: Named) -> None:
    with torch.no_grad():
        for name, p in into.items():
            p.copy_(of[name])


# -- names ------------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_n1_a_state_goes_to_the_parameter_of_its_name(kind: str, prefix: str) -> None:
    a, b = parameters("q", "k"), parameters("k", "q")
    first = MPlusAdam([(prefix + n, p) for n, p in a.items()], lr=1e-2, lr_mult=1e-2, seed=1, **KINDS[kind])
    second = build(b, kind)
    train(first, a)
    load_weights(b, a)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["param_names"] == ["k", "q"]
    assert same(ends(first, a), ends(second, b))
    train(first, a, 4, 5)
    train(second, b, 4, 5)
    assert same(ends(first, a), ends(second, b))


def groups_of(named: Named, *of: str) -> list[dict[str, Any]]:
    return [{"params": [(n, named[n]) for n in names], "lr": 1e-3 * len(names)} for names in of]


def test_n1_groups_are_found_by_their_names() -> None:
    a, b = parameters("a", "b", "c"), parameters("a", "b", "c")
    first, second = AdamW(groups_of(a, "ab", "c")), AdamW(groups_of(b, "c", "ba"))
    first.param_groups[1]["weight_decay"] = 0.5
    train(first, a)
    second.load_state_dict(first.state_dict())
    assert [g["weight_decay"] for g in second.param_groups] == [0.5, 0.1]
    assert [g["lr"] for g in second.param_groups] == [1e-3, 2e-3]
    load_weights(b, a)
    assert same(ends(first, a), ends(second, b))


@pytest.mark.parametrize(
    ("names", "shapes", "message"),
    [
        ("qv", {}, "the checkpoint lacks 'v' and has the unknown 'k'"),
        ("qkv", {}, "the checkpoint lacks 'v': its parameters are not the optimizer's"),
        ("q", {}, "the checkpoint has the unknown 'k'"),
        (
            "kq",
            {"k": (6, 4)},
            r"for parameter k the checkpoint keeps m of shape \(4, 6\) .* the optimizer shape \(6, 4\)",
        ),
    ],
)
def test_n1_what_does_not_fit_is_refused_by_name_and_shape(names: str, shapes: dict, message: str) -> None:
    a = parameters("q", "k")
    b = {n: p for name in names for n, p in parameters(name, shape=shapes.get(name, (4, 6))).items()}
    first, second = AdamW(a.items()), AdamW(b.items())
    train(first, a)
    before = copy.deepcopy(ends(second, b))
    with pytest.raises(ValueError, match=message):
        second.load_state_dict(first.state_dict())
    assert same(before, ends(second, b))
    train(second, b, 1, 1)


def test_n1_other_companions_in_a_group_are_refused() -> None:
    a, b = parameters("a", "b", "c"), parameters("a", "b", "c")
    with pytest.raises(ValueError, match="parameter 'a' shares its group with others in the checkpoint"):
        AdamW(groups_of(b, "a", "bc")).load_state_dict(AdamW(groups_of(a, "ab", "c")).state_dict())


@pytest.mark.parametrize("named", ["saved", "loading", "neither"])
def test_n1_without_names_on_both_sides_order_decides_and_shapes_are_checked(named: str) -> None:
    a, b, c = parameters("a", "b"), parameters("x", "y"), parameters("x", "y", shape=(6, 4))
    first = AdamW(a.items() if named == "saved" else a.values())
    train(first, a)
    for others in (b, c):
        second = AdamW(others.items() if named == "loading" else others.values())
        if others is c:
            with pytest.raises(
                ValueError, match=r"for parameter [0x] the checkpoint keeps m of shape \(4, 6\) .* \(6, 4\)"
            ):
                second.load_state_dict(first.state_dict())
            continue
        second.load_state_dict(first.state_dict())
        assert torch.equal(first.state[a["b"]]["m"], second.state[b["y"]]["m"])
        assert second.param_groups[0].get("param_names") == (["x", "y"] if named == "loading" else None)


def test_n1_names_given_by_torchs_checkpoint_helpers_decide_over_names_saved_with_them() -> None:
    """They put names where numbers are, in the optimizer's order, and leave `param_names` as it was saved."""
    a, b = parameters("q", "k"), parameters("k", "q")
    first, second = AdamW(a.items()), AdamW(b.items())
    train(first, a)
    saved = first.state_dict()
    (group,), state = saved["param_groups"], saved["state"]
    by_name = {"state": {"q": state[0], "k": state[1]}, "param_groups": [{**group, "params": ["k", "q"]}]}
    second.load_state_dict(by_name)
    load_weights(b, a)
    assert same(ends(first, a), ends(second, b))


def test_equal_names_keep_their_order() -> None:
    """`chain(a.named_parameters(), b.named_parameters())` of two models."""
    a, b = [parameters("w"), parameters("w")], [parameters("w"), parameters("w")]
    first, second = (AdamW([("w", x["w"]) for x in pair]) for pair in (a, b))
    a[0]["w"].grad = torch.ones(4, 6).bfloat16()
    first.step()
    second.load_state_dict(first.state_dict())
    assert [second.state[x["w"]]["step"] for x in b] == [1, 0]


def test_a_number_of_a_parameter_is_given_once() -> None:
    """The number decides the rounding bits; a parameter that is added after others were removed gets one of its own."""
    named = parameters("a", "b", "c")
    optimizer = build(named, "codes")
    gone = optimizer.param_groups[0]["params"].pop(0)
    optimizer.param_groups[0]["param_names"].pop(0)
    optimizer.state.pop(gone)
    optimizer.add_param_group({"params": parameters("d").items()})
    assert sorted(state["id"] for state in optimizer.state.values()) == [1, 2, 3]


# -- exchanged parameters ---------------------------------------------------------------------------------------------


def exchange(optimizer: torch.optim.Optimizer, named: Named, name: str) -> tuple[nn.Parameter, nn.Parameter]:
    """Another parameter with the same values in the place of one."""
    old = named[name]
    named[name] = nn.Parameter(old.detach().clone())
    group = optimizer.param_groups[0]
    group["params"] = [named[name] if p is old else p for p in group["params"]]
    return old, named[name]


@every_kind
def test_n3_an_exchanged_parameter_keeps_the_state_that_is_moved_to_it(kind: str) -> None:
    results = []
    for exchanged in (False, True):
        named = parameters("a", "b")
        optimizer = build(named, kind)
        train(optimizer, named)
        if exchanged:
            old, new = exchange(optimizer, named, "a")
            optimizer.state[new] = optimizer.state.pop(old)
            optimizer.state[named["b"]] = dict(optimizer.state[named["b"]])  # as tools do that move states
            assert torch.equal(optimizer.store_of(new).read().bfloat16(), new)
            saved = optimizer.state_dict()
            assert saved["state"][0]["step"] == 3
        train(optimizer, named, 4, 6)
        results.append(ends(optimizer, named))
    assert same(*results)


@every_kind
def test_n3_without_its_state_an_exchange_is_refused(kind: str) -> None:
    named = parameters("a", "b")
    optimizer = build(named, kind)
    train(optimizer, named)
    before = ends(optimizer, {"b": named["b"]})
    saved = optimizer.state_dict()
    exchange(optimizer, named, "a")
    for act in (optimizer.state_dict, lambda: train(optimizer, named, 4, 4), lambda: optimizer.load_state_dict(saved)):
        with pytest.raises(ValueError, match=r"optimizer.state\[new\] = optimizer.state.pop\(old\)"):
            act()
    assert same(before, ends(optimizer, {"b": named["b"]}))


@pytest.mark.parametrize("kind", ["master", "kahan"])
def test_n3_finer_values_than_the_new_parameter_holds_are_not_thrown_away(kind: str) -> None:
    """Before the first step an exchange is like building again, unless the optimizer was given finer weights."""
    named = parameters("a", "b")
    optimizer = build(named, kind)
    exchange(optimizer, named, "a")
    optimizer.state_dict()
    assert len(optimizer.state) == 2
    optimizer.reload_weights({named["a"]: torch.full((4, 6), 1 / 3)})
    exchange(optimizer, named, "a")
    with pytest.raises(ValueError, match="is in no group any more"):
        train(optimizer, named, 1, 1)


def test_n3_the_state_of_another_shape_is_refused() -> None:
    named = parameters("a", "b")
    optimizer = build(named, "master")
    train(optimizer, named)
    old, _ = exchange(optimizer, named, "a")
    named["a"] = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.zeros(3, 6).bfloat16())
    optimizer.state[named["a"]] = optimizer.state.pop(old)
    with pytest.raises(ValueError, match=r"m of shape \(4, 6\) .* its parameter needs shape \(3, 6\)"):
        train(optimizer, named, 4, 4)


def test_a_state_that_is_gone_is_refused_where_the_weight_was_in_it() -> None:
    for kind in KINDS:
        named = parameters("a", "b")
        optimizer = build(named, kind)
        train(optimizer, named)
        optimizer.state.clear()
        if kind == "weight":  # the moments start again, as in torch
            train(optimizer, named, 4, 4)
            assert {state["step"] for state in optimizer.state.values()} == {1}
        else:
            with pytest.raises(ValueError, match="is gone, and with it the weight"):
                train(optimizer, named, 4, 4)


# -- other tensors behind a parameter ---------------------------------------------------------------------------------


def through_other_dtypes(p: nn.Parameter) -> None:
    p.data = p.data.double()
    p.data = p.data.bfloat16()


def swapped(p: nn.Parameter) -> None:
    torch.utils.swap_tensors(p, nn.Parameter(p.detach().clone()))


MOVES = {
    "clone": lambda p: setattr(p, "data", p.data.clone()),
    "dtypes": through_other_dtypes,
    "swap": swapped,
    "flat": lambda p: vector_to_parameters(parameters_to_vector([p]), [p]),
    "same values": lambda p: p.detach().copy_(p.detach().clone()),
}


@every_kind
@pytest.mark.parametrize("move", MOVES)
def test_n10_another_address_is_no_write(kind: str, move: str) -> None:
    results = []
    for moved in (False, True):
        named = parameters("a", "b")
        optimizer = build(named, kind)
        for t in range(1, 5):
            for p in named.values() if moved else ():
                p.grad = None
                MOVES[move](p)
            train(optimizer, named, t, t)
        results.append(ends(optimizer, named))
    assert same(*results)


def other_values(values: Tensor) -> dict[str, Tensor]:
    one = values.clone()
    one[2, 3] += 1.0
    return {"half": values * 0.5, "one": one, "rows": values.flip(0), "columns": values.roll(4, 1), "sign": -values}


CHANGES = {
    "half": lambda x: x * 0.5,
    "one": lambda x: x.index_fill(0, torch.tensor([len(x) // 2]), 7.0),
    "rows": lambda x: x.flip(0),
    "columns": lambda x: x.roll(4, -1),
    "sign": lambda x: -x,
}


@pytest.mark.parametrize("kind", ["kahan", "master", "codes"])
@pytest.mark.parametrize("shape", [(4, 6), (100, 64), (2051,)])
def test_n10_other_values_are_a_write(kind: str, shape: tuple[int, ...]) -> None:
    named = parameters("a", shape=shape)
    p, optimizer = named["a"], build(named, kind)
    for t, change in enumerate(CHANGES.values(), 4):
        train(optimizer, named, t, t)
        with torch.no_grad():
            if t % 2:
                p.copy_(change(p))
            else:
                p.data = change(p)
        with pytest.raises(ValueError, match=r"call optimizer.reload_weights\(\)"):
            train(optimizer, named, t, t)
        optimizer.reload_weights()


def test_another_shape_or_dtype_is_refused_in_a_line() -> None:
    for change, message in (
        (lambda p: p.data[:3], r"had shape \(4, 6\) when the optimizer took it and has \(3, 6\) now"),
        (lambda p: p.data.half(), "was torch.bfloat16 when the optimizer was built and is torch.float16"),
    ):
        named = parameters("a")
        optimizer = build(named, "master")
        named["a"].data = change(named["a"])
        with pytest.raises(ValueError, match=message):
            train(optimizer, named)


def test_states_do_not_follow_a_parameter_to_meta() -> None:
    """The one other device that every machine has, where they would be lost."""
    named = parameters("a")
    optimizer = build(named, "codes")
    store = optimizer.store_of(named["a"])
    torch.utils.swap_tensors(named["a"], nn.Parameter(named["a"].detach().to("meta")))
    with pytest.raises(ValueError, match="nothing can be moved from or to meta"):
        store.follow_device()
    assert {v.device.type for v in optimizer.state[named["a"]].values() if isinstance(v, Tensor)} == {"cpu"}


@every_kind
def test_copies_and_pickles_go_on_alike(kind: str) -> None:
    named = parameters("a", "b")
    optimizer = build(named, kind)
    train(optimizer, named)
    copies = [copy.deepcopy((named, optimizer)), pickle.loads(pickle.dumps((named, optimizer)))]
    train(optimizer, named, 4, 5)
    for other, its_optimizer in copies:
        train(its_optimizer, other, 4, 5)
        assert same(ends(optimizer, named), ends(its_optimizer, other))


def test_loading_twice_is_loading_once() -> None:
    named, other = parameters("a", "b"), parameters("a", "b")
    optimizer, resumed = build(named, "kahan"), build(other, "kahan")
    train(optimizer, named)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    for _ in range(2):
        buffer.seek(0)
        load_weights(other, named)
        resumed.load_state_dict(torch.load(buffer, weights_only=True))
    train(optimizer, named, 4, 5)
    train(resumed, other, 4, 5)
    assert same(ends(optimizer, named), ends(resumed, other))


def test_a_parameter_with_two_names_is_one() -> None:
    """Tied weights by `named_parameters(remove_duplicate=False)`; torch warns of them."""
    named = parameters("a")
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = Madam([("in", named["a"]), ("out", named["a"])])
    train(optimizer, named)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert len(optimizer.state) == 1
