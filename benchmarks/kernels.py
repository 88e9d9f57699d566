"""What positions add to a training step on a GPU: kernels and bytes, counted without a GPU.

    python benchmarks/kernels.py [--cases vit_small …] [--pos cape rope …] [--csv FILE]
        [--without rotate …] [--saved]

Counts the operations of a forward and a backward that are no views, and the bytes that go in and
out of them, beyond those of the same model without positions. The numbers are exact and the same on
every machine. On a GPU in eager mode each operation is a kernel (some are two), which costs 7 to 40
µs to launch, and bytes cost time at the GPU's bandwidth; both are an estimate, not a measurement.

``--without rotate …`` counts plain operations in place of these functions of cape_plugins.fused.
``--saved`` prints what each of its files saves of a whole training step and of a forward in
inference.

The tensors are fake ones, which have no values, under bfloat16 autocast. Checks of values are those
of CUDA, attention counts as one operation as fused kernels do, and constants that are made once in
a process are made before the count. Two differences to a GPU stay: the mean of positions is the
CPU's, which is one operation more, and autocast is the CPU's, which leaves norms in bfloat16.
"""

import argparse
import contextlib
import importlib
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cape_plugins import (
    Positions,
    checks,
    fused,
    patch_grid,
    relpos,
    rotary,
    token_positions,
)
from common import append_csv
from hosts import CASES as HOSTS
from hosts import STOCK, builder, names_of

BANDWIDTH = 2.5e12  # bytes a second, an H100's, measured (docs/cost.md)
LAUNCHES = 7e-6, 40e-6  # seconds a kernel: beside a fast CPU, beside the slow one of docs/cost.md
# cases of hosts.py, and samples in a batch: docs/cost.md's
CASES = {"vit_small": 256, "asr_12": 24, "conformer_12": 24, "wmt_base": 64}
MODULES = {
    "timm": ["cape_plugins.timm.vision_transformer"],
    "fairseq": ["cape_plugins.fairseq.transformer"],
    "espnet": ["cape_plugins.espnet.encoder"],
}
# operations that do not read what they write into
OVERWRITES = (torch.ops.aten.copy_, torch.ops.aten.zero_, torch.ops.aten.fill_)
# operations that launch nothing
NONE = ("aten.empty", "aten.new_empty", "aten.detach", "aten.alias", "aten._unsafe_view")
NONE += ("aten.promote_types", "aten.lift_fresh", "prim.")


class Count(NamedTuple):
    """Operations and bytes of a forward, and of its backward."""

    forward: int
    backward: int
    forward_bytes: int
    backward_bytes: int

    def beyond(self, other: "Count") -> "Count":
        """What this has more than the other."""
        return Count(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Counting(TorchDispatchMode):
    """Counts operations that are no views, and the bytes of the tensors that go in and out."""

    operations = bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operation and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view or str(func).startswith(NONE):
            return result
        read: list[Any] = [value for name, value in kwargs.items() if name != "out"]
        read += args[1:] if func.overloadpacket in OVERWRITES else args
        self.operations += 1
        for tensor in tree_leaves((read, result)):
            if isinstance(tensor, Tensor):
                self.bytes += stored_bytes(tensor)
        return result


def stored_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor, without those that it only seems to have, as it is expanded."""
    sizes = [size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
    return tensor.element_size() * math.prod(sizes) if tensor.numel() else 0


@torch.library.custom_op("cape_benchmarks::attend", mutates_args=())
def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    raise NotImplementedError  # only fake tensors come here


@_attend.register_fake
def _(query, key, value, bias):
    return torch.empty_like(query)


# torch 2.5 cannot read list[Tensor] in a signature
@torch.library.custom_op(
    "cape_benchmarks::attend_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? bias, bool of_bias)"
    " -> Tensor[]",
)
def _attend_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, of_bias: bool
) -> list[Tensor]:
    raise NotImplementedError


@_attend_backward.register_fake
def _(grad, query, key, value, bias, of_bias):
    wanted = [query, key, value, bias] if of_bias else [query, key, value]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in wanted]


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.of_bias = inputs[3] is not None and inputs[3].requires_grad


def _gradients(ctx, grad):
    found = _attend_backward(grad, *ctx.saved_tensors, ctx.of_bias)
    return (*found[:3], found[3] if ctx.of_bias else None)


_attend.register_autograd(_gradients, setup_context=_keep)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """In place of PyTorch's: one operation, and a copy of a bias that does not lie as it must."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (x.to(dtype) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(dtype)
    if attn_mask is not None:
        # PyTorch makes bools numbers, and copies rows that do not begin at multiples of eight
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(attn_mask, 1.0)
        *steps, last = attn_mask.stride()
        if last != 1 or any(step % 8 for step in steps):
            attn_mask = F.pad(attn_mask, (0, 8 - attn_mask.shape[-1] % 8))
            attn_mask = attn_mask[..., : key.shape[2]]
    return _attend(query, key, value, attn_mask)


def _attend_whole(bias, query, key, value, mask, dropout):
    added = bias(query, key, mask)
    return F.scaled_dot_product_attention(query, key, value, added, dropout)


def _scores(plain, query, table, mask, left, right):
    scores = relpos.distance_scores(query, table, left, right)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


# file of cape_plugins.fused → cases and variants of which --saved says what it saves
SAVED = {
    "constants": [("vit_small", "sinpos"), ("wmt_base", "sinpos")],
    "elementwise": [("vit_small", "alibi"), ("vit_small", "cape_alibi"), ("asr_12", "sinpos")],
    "rotation": [("vit_small", "rope"), ("wmt_base", "rope")],
    "relative": [("asr_12", "relpos"), ("wmt_base", "relpos")],
    "mixed_table": [("vit_small", "rope_mixed_cape")],
}
# function of cape_plugins.fused → what stands beside its call
PLAIN: dict[str, Callable[..., Any]] = {
    "constant": lambda make, *settings, like: make(*settings, like.device),
    "sin": lambda phase, dtype: phase.sin().to(dtype),
    "rows": lambda first, second, dtype: (first * second).to(dtype),
    "add_where": lambda content, added, present: (content + added * present).to(content.dtype),
    "rotate": lambda table, back, again, *turned: tuple(
        rotary._rotate(table, x, back) for x in turned
    ),
    "distance_scores": _scores,
    "attend_in_parts": _attend_whole,
    "mixed_table": lambda coords, frequencies: _timms_mixed_table(coords, frequencies),
}


def _check_values(values: Tensor, ok: Callable[[], Tensor], rule: str) -> None:
    torch._assert_async(ok().all(), rule)


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Fake tensors, for which the plug-in's eager mode runs as for real ones on CUDA."""

    def is_plain(*tensors: Tensor) -> bool:
        return not checks.is_traced()

    ours = dict(is_plain=is_plain, check_values=_check_values)
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("cape_plugins"):
                for function in ours.keys() & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, function, ours[function]))
        made = "cape_plugins.fused.constants._MADE"
        stack.enter_context(mock.patch(made, {}))
        # hosts that ask whether there is padding hear that there is none
        stack.enter_context(mock.patch.object(Tensor, "__bool__", return_value=False))
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", lambda module, *_: module))
        stack.enter_context(mock.patch.object(Tensor, "item", return_value=0.0))  # timm's rates
        # it reads its bounds from tensors
        stack.enter_context(mock.patch("torch.nn.init.trunc_normal_", lambda tensor, **_: tensor))
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", attention))
        # it compares numbers, of which there are none
        stack.enter_context(mock.patch("cape_plugins.positions.try_out", return_value=None))
        # of the first forward alone
        stack.enter_context(mock.patch.object(relpos.RelativePositions, "check_even"))
        stack.enter_context(FakeTensorMode())
        yield


def count(step: Callable[[], Tensor], training: bool = True) -> Count:
    """A step's forward, which returns a loss, and backward, after one that makes constants."""
    for last in (False, True):
        with Counting() as forward, torch.autocast("cpu", torch.bfloat16):
            loss = step()
        with Counting() as backward:
            if training:
                loss.backward()
        if last:
            break
    return Count(forward.operations, backward.operations, forward.bytes, backward.bytes)


def count_model(
    case: str, batch: int, pos: str, tiny: bool = False, training: bool = True
) -> Count:
    """A training step of a case of hosts.py, without the optimizer's; or its forward in eval."""
    for module in MODULES[HOSTS[case][0]]:
        importlib.import_module(module)  # what is patched must be there
    with as_on_a_gpu(), torch.set_grad_enabled(training):
        model, loss = builder(case, batch, "cpu", tiny=tiny)(pos)
        model.train(training)
        return count(lambda: loss(model), training)


def count_embedding(
    pos: str, axes: int, batch: int = 8, tokens: int = 196, dim: int = 384
) -> Count:
    """What is added at the input alone, beyond the sum that stands for the rest of the model."""
    options: dict[str, Any] = {}
    if pos == "cape":
        options = dict(max_global_shift=0.5, max_local_shift=0.07, max_global_scale=1.4)
    with as_on_a_gpu():
        module = Positions(pos, dim=dim, axes=axes, **options)
        content = torch.empty(batch, tokens, dim, dtype=torch.bfloat16, requires_grad=True)
        if axes == 2:
            positions = patch_grid(14, tokens // 14, device="cpu")[None]
        else:
            positions = token_positions(torch.full([batch], tokens), tokens)
        return count(lambda: module(content, positions)[0].sum()).beyond(
            count(lambda: content.sum())
        )


def count_rotation(
    pos: str, batch: int = 8, heads: int = 6, tokens: int = 196, dim: int = 64
) -> Count:
    """Rotation of the queries and keys of a layer, each of its own projection; bytes a channel."""
    with as_on_a_gpu():
        module = Positions(pos, dim=heads * dim, heads=heads, layers=1, axes=2)
        (layer,) = module.attentions
        shape = (batch, tokens, heads, dim)
        both = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
        _, given = module(None, torch.empty(batch, tokens, 2))

        def total(embedded: bool) -> Tensor:
            query, key = (x.transpose(1, 2) for x in both)
            if embedded:
                query, key = layer.embed_both(query, key, given)
            # a sum hands back an expanded number: here each has a gradient of its own, as there
            return _attend(query, key, key, None).sum()

        found = count(lambda: total(True)).beyond(count(lambda: total(False)))
    channels = 2 * batch * heads * tokens * dim
    per_channel = [round(one / channels, 1) for one in found[2:]]
    return Count(*found[:2], *per_channel)


def count_attention(pos: str, tokens: int, shared: bool = True, context: int = 893) -> Count:
    """Attention alone, beyond that without positions; bytes per score."""
    batch, heads, dim = 4, 8, 64
    with as_on_a_gpu():
        options = {"relpos_context": min(tokens, context)} if pos == "relpos" else {}
        shape = (batch, heads, tokens, dim)
        inputs = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        positions = torch.empty(1 if shared else batch, tokens)

        module = Positions(pos, dim=heads * dim, heads=heads, layers=1, **options)
        (layer,) = module.attentions

        def total() -> Tensor:
            where = positions[..., None]
            given = layer.prepare(where, where, None, torch.bfloat16)
            return layer(*inputs, given)[0].sum()

        found = count(total).beyond(count(lambda: _attend(*inputs, None).sum()))
    scores = batch * heads * tokens**2
    return Count(*found[:2], *(round(one / scores, 1) for one in found[2:]))


def count_mixed_table(batch: int = 8, heads: int = 6, tokens: int = 196, dim: int = 64) -> Count:
    """The table of RoPE-mixed of a layer of timm's twins, for coordinates of each image."""
    with as_on_a_gpu():
        coords = torch.empty(batch, tokens, 2)
        frequencies = torch.empty(2, heads, dim // 2, requires_grad=True)

        def total(made: bool) -> Tensor:
            table = fused.mixed_table(coords, frequencies) if made else given
            return _attend(table, table, table, None).sum()

        shape = (batch, heads, tokens, 2 * dim)
        given = torch.empty(shape, requires_grad=True)
        return count(lambda: total(True)).beyond(count(lambda: total(False)))


def _timms_mixed_table(coords, frequencies):
    from timm.layers import get_mixed_freqs

    x, y = coords[:, None].unbind(-1)
    return get_mixed_freqs(frequencies, x, y, torch.float32)


def parts() -> dict[str, Count]:
    """The parts of a step by themselves."""
    found = {}
    for axes, where in ((2, "images"), (1, "sequences")):
        for pos in ("sinpos", "cape"):
            found[f"embedding, {pos}, {where}"] = count_embedding(pos, axes)
    found["rotation of a layer, rope, bytes a channel"] = count_rotation("rope")
    found["table of RoPE-mixed of a layer of a twin"] = count_mixed_table()
    for tokens in (1024, 4096):
        for pos, shared in (("alibi", True), ("alibi", False), ("relpos", True)):
            of = "relpos" if pos == "relpos" else f"alibi, {'shared' if shared else 'per sample'}"
            name = f"attention of {tokens} tokens, {of}, bytes a score"
            found[name] = count_attention(pos, tokens, shared)
    return found


def saved() -> str:
    """Kernels and GB of a step and of inference with each file, and the part that it saves."""
    head = ["file", "case", "variant", "kernels of a step", "GB", "of inference", "GB"]
    rows = []
    for file, cases in SAVED.items():
        of_file = {n: of for n, of in PLAIN.items() if getattr(fused, n).__module__.endswith(file)}
        for case, pos in cases:
            row = [file, case, pos]
            for training in (True, False):
                given = case, CASES[case], pos, False, training
                ours = count_model(*given)
                with mock.patch.multiple(fused, **of_file):
                    plain = count_model(*given)
                for unit, own, other in ((1, ours[:2], plain[:2]), (1e9, ours[2:], plain[2:])):
                    row.append(f"{sum(own) / unit:.4g} ({sum(own) / sum(other) - 1:+.1%})")
            rows.append(row)
    return tabulate(rows, head, tablefmt="github")


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--pos", nargs="+", help="default: all of the host's")
    parser.add_argument("--without", nargs="*", default=[], choices=PLAIN)
    parser.add_argument("--csv", type=Path, help="also append the numbers there")
    parser.add_argument("--saved", action="store_true", help="what each file saves, and no more")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if arguments.saved:
        print(saved())
        return
    for piece in arguments.without:
        setattr(fused, piece, PLAIN[piece])
    rows: list[dict[str, Any]] = []
    for name, found in parts().items():
        rows.append({"case": "part", "pos": name, **found._asdict()})
    for case in arguments.cases:
        host_names = names_of(HOSTS[case][0])
        base = count_model(case, CASES[case], "nopos")
        rows.append({"case": case, "pos": "nopos, the whole step", **base._asdict()})
        for pos in host_names:
            if pos not in ("nopos", STOCK) and (arguments.pos is None or pos in arguments.pos):
                found = count_model(case, CASES[case], pos).beyond(base)
                rows.append({"case": case, "pos": pos, **found._asdict()})
    if arguments.csv:
        append_csv(arguments.csv, rows)
    print(tables(rows))


def tables(rows: list[dict[str, Any]]) -> str:
    """Parts, and training steps beyond nopos with the time that an H100 would take for them."""
    head = ["part", "operations forward", "backward", "bytes forward", "backward"]
    alone = [list(row.values())[1:] for row in rows if row["case"] == "part"]
    found = [tabulate(alone, head, tablefmt="github"), ""]
    head = ["step, beyond nopos", "variant", "operations", "GB", "ms of bytes", "ms of launches"]
    steps = []
    for row in rows:
        if row["case"] != "part":
            operations = row["forward"] + row["backward"]
            moved = row["forward_bytes"] + row["backward_bytes"]
            launches = " to ".join(f"{1e3 * operations * each:.1f}" for each in LAUNCHES)
            milliseconds = 1e3 * moved / BANDWIDTH
            steps.append([row["case"], row["pos"], operations, moved / 1e9, milliseconds, launches])
    return "\n".join([*found, tabulate(steps, head, tablefmt="github", floatfmt=".2f")])


if __name__ == "__main__":
    main()
