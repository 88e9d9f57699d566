"""Checks of parity.py: what eager mode computes in its own way, and what is drawn."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from functools import partial
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import cape_plugins.constants
import cape_plugins.relpos
import cape_plugins.rotation
from cape_plugins import PositionalEmbedding, token_positions
from cape_plugins.alibi import Alibi
from cape_plugins.attention import AttentionSettings
from cape_plugins.augment import Draw
from cape_plugins.relpos import RelativeAttention
from cape_plugins.rotary import MixedRotaryAttention, RotaryAttention
from parity_support import Found, error, left_out, other_bits

SHAPE = BATCH, HEADS, TOKENS, DIM = 4, 6, 197, 64


def _operations_of(module: str, plain: bool) -> contextlib.AbstractContextManager[object]:
    """Those of eager mode in a module of cape_plugins, or the plain ones of a compiler."""
    if plain:
        return mock.patch(f"cape_plugins.{module}.is_plain", return_value=False)
    return contextlib.nullcontext()


def _queries_and_keys(layout: str, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """(B, heads, N, d): of one projection (timm), or of two with another order (fairseq)."""
    if layout == "one projection":
        shape = (BATCH, TOKENS, 3, HEADS, DIM)
        projected = torch.randn(shape, device=device).to(dtype).requires_grad_()
        query, key, _ = projected.permute(2, 0, 3, 1, 4).unbind()
        return query, key
    shape = (2, TOKENS, BATCH, HEADS, DIM)
    query, key = torch.randn(shape, device=device).to(dtype).requires_grad_().unbind()
    return query.permute(1, 2, 0, 3), key.permute(1, 2, 0, 3)


def rotation(device: str, quick: bool) -> Iterator[Found]:
    """Rotated queries and keys and their gradients: those of the plain expression.

    On a CPU they have the same bits. CUDA may round a sum of two products once or twice.
    """
    settings = AttentionSettings(head_dim=DIM, heads=HEADS, axes=2)
    positions = 2 * torch.rand(BATCH, TOKENS, 2, device=device) - 1
    layers = {"rotary": RotaryAttention(settings), "mixed": MixedRotaryAttention(settings)}
    layouts = ("one projection", "two projections")
    dtypes = (torch.bfloat16, torch.float16, torch.float32)[: 1 if quick else None]
    for (name, layer), layout, dtype in itertools.product(layers.items(), layouts, dtypes):
        layer.to(device)
        prepared = layer.prepare(positions, settings)
        query, key = _queries_and_keys(layout, dtype, device)
        grads = [torch.randn(SHAPE, device=device).to(dtype) for _ in range(2)]
        inputs = [query, key, *layer.parameters()]
        results = []
        for plain in (False, True):
            with _operations_of("rotation", plain):
                rotated = layer.embed_both(query, key, prepared)
                found = torch.autograd.grad(rotated, inputs, grads, retain_graph=True)
            results.append([*rotated, *found])
        ours, plainly = results
        what = f"{name}, {str(dtype)[6:]}, {layout}"
        worst = max(map(error, ours[:4], plainly[:4]))
        limit = 1e-6 if dtype == torch.float32 else 1e-4
        yield f"rotation, {what}: against plain operations", worst, 0 if device == "cpu" else limit
        for one, other in zip(ours[4:], plainly[4:], strict=True):
            allowed = 1e-5 if dtype == torch.float32 else 1e-2
            yield f"rotation, {what}: gradient of frequencies", error(one, other), allowed


def _attend(
    layer: RelativeAttention, inputs: list[Tensor], grad: Tensor, mask: Tensor | None
) -> list[Tensor]:
    out, _ = layer(*inputs, None, mask)
    return [out, *torch.autograd.grad(out, [*inputs, layer.keys], grad)]


def relpos(device: str, quick: bool) -> Iterator[Found]:
    """relpos in one buffer and in parts of the queries: as by plain operations in float64."""
    layer = RelativeAttention(AttentionSettings(head_dim=DIM, heads=2, context=60))
    limits = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
    # whole and of odd length; in parts, of which the last is shorter
    for tokens, (dtype, limit) in itertools.product((99, 1501), limits.items()):
        for masked in (False, True):
            torch.manual_seed(0)
            shape = (2, 2, tokens, DIM)
            inputs = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
            grad = torch.randn(shape).to(dtype)
            lengths = torch.tensor([tokens, tokens // 3])[:, None, None, None]
            mask = torch.arange(tokens) < lengths if masked else None
            wide = [x.detach().double().requires_grad_() for x in inputs]
            with _operations_of("relpos", plain=True):
                wanted = _attend(layer.to("cpu", torch.float64), wide, grad.double(), mask)
            moved = [x.detach().to(device).requires_grad_() for x in inputs]
            there = None if mask is None else mask.to(device)
            layer.to(device, torch.float32)
            found = _attend(layer, moved, grad.to(device), there)
            worst = max(map(error, found, wanted))
            what = f"{tokens} tokens, {str(dtype)[6:]}{', padding' if masked else ''}"
            yield f"relpos, {what}: output and gradients against float64", worst, limit
    yield from _relpos_dropout(layer.to(device, torch.float32), device)


def _relpos_dropout(layer: RelativeAttention, device: str) -> Iterator[Found]:
    """Backward of parts drops the weights that forward dropped: output is linear in values."""
    query, key, value, grad = torch.randn(4, 1, 2, 1501, DIM, device=device).unbind()
    value.requires_grad_()
    out, _ = layer(query, key, value, dropout=0.3)
    (of_value,) = torch.autograd.grad(out, value, grad)
    forward, backward = (out * grad).double().sum(), (value * of_value).double().sum()
    apart = float((forward - backward).abs() / (out * grad).double().norm())
    yield "relpos in parts: dropout of backward is that of forward", apart, 1e-3


def alibi(device: str, quick: bool) -> Iterator[Found]:
    """ALiBi's bias, whose rows lie apart, under each attention kernel that takes one.

    Padding is hidden, and in a second turn later tokens too. An H100 takes cuDNN's kernel for half
    precision from torch 2.11 on.
    """
    settings = AttentionSettings(head_dim=DIM, heads=HEADS)
    layer = Alibi(settings)
    kernels = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if device == "cpu":
        kernels = [SDPBackend.MATH]
    for kernel, tokens, causal in itertools.product(kernels, (64, 197), (False, True)):
        torch.manual_seed(0)
        positions = token_positions(torch.tensor([tokens, tokens // 3]), tokens)
        # each sample has distances of its own, as under CAPE in training
        positions = positions * torch.tensor([[1.0], [1.3]])
        hidden = positions.isnan()[:, None]  # (2, 1, tokens)
        if causal:
            hidden = hidden | torch.ones(tokens, tokens).triu(1).bool()
        shape = (2, HEADS, tokens, DIM)
        inputs = [torch.randn(shape).bfloat16().requires_grad_() for _ in range(3)]
        grad = torch.randn(shape).bfloat16()
        results = []
        for where, dtype, chosen in (
            ("cpu", torch.float64, SDPBackend.MATH),
            (device, torch.bfloat16, kernel),
        ):
            moved = [x.detach().to(where, dtype).requires_grad_() for x in inputs]
            prepared = layer.prepare(
                positions.to(where), settings, hidden=partial(hidden.to, where), dtype=dtype
            )
            with sdpa_kernel(chosen):
                out, _ = layer(*moved, prepared)
                results.append([out, *torch.autograd.grad(out, moved, grad.to(where, dtype))])
        worst = max(map(error, results[1], results[0]))
        what = f"{tokens} tokens{', causal' if causal else ''}, {kernel.name}"
        yield f"alibi, {what}: output and gradients against float64", worst, 2e-2


def constants(device: str, quick: bool) -> Iterator[Found]:
    """Frequencies on side streams and in CUDA graphs, whose memory is their own."""
    if device != "cuda":
        yield left_out("constants under CUDA graphs and on side streams")
        return
    made = cape_plugins.constants._MADE
    for axes in (1, 2):
        # what CUDA itself sets up at a first call may not be captured
        warm = PositionalEmbedding(96, "sinpos", axes=axes).to(device).eval()
        shape = (2, 50) if axes == 1 else (2, 50, 2)
        positions, others = (torch.rand(shape, device=device) for _ in range(2))
        content = torch.randn(2, 50, 96, device=device)
        warm(content, positions)
        # settings that nothing else here has: their constants are not there yet
        position = PositionalEmbedding(96, "sinpos", axes=axes, frequency_scale=1.25).eval()
        before = len(made)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = position(content, positions)
        yield f"constants, {axes} axes: kept from a capture", len(made) - before, 0
        eager = position(content, others)
        positions.copy_(others)
        graph.replay()
        different = other_bits(captured, eager)
        yield f"constants, {axes} axes: a replay's numbers of other bits", different, 0
        del graph, captured
        torch.cuda.empty_cache()
        again = position(content, others)
        different = other_bits(again, eager)
        yield f"constants, {axes} axes: the same after the graph is gone", different, 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            on_side = position(content, others)
        torch.cuda.current_stream().wait_stream(side)
        different = other_bits(on_side, eager)
        yield f"constants, {axes} axes: on a side stream", different, 0


def _distance_from_uniform(values: Tensor, most: float) -> float:
    """Kolmogorov–Smirnov's statistic of values that should be uniform in ± most, × √n."""
    sorted_ = (values.flatten().double().cpu().sort().values + most) / (2 * most)
    count = len(sorted_)
    steps = (torch.arange(count) + 0.5) / count
    return float((sorted_ - steps).abs().max()) * math.sqrt(count)


def draws(device: str, quick: bool) -> Iterator[Found]:
    """Δ, λ and ε are uniform, and new at every replay of a CUDA graph."""
    settings = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4)
    position = PositionalEmbedding(64, "cape", **settings).train()
    count = 2_000 if quick else 200_000
    torch.manual_seed(0)
    draw = position.draw(count, torch.device(device))
    assert draw is not None
    # 1.95: passed by chance by one in 1,000
    yield "draws of Δ, √n × distance", _distance_from_uniform(draw.shift, 5.0), 1.95
    scale = _distance_from_uniform(draw.scale.log(), math.log(1.4))
    yield "draws of log λ, √n × distance", scale, 1.95
    lines = count // 1000
    none = Draw(torch.zeros(lines, 1, device=device), torch.ones(lines, device=device))
    tokens = torch.arange(1000.0, device=device)[None].repeat(lines, 1)
    local = position.augment(tokens, lines, none) - (tokens - tokens.mean(dim=1, keepdim=True))
    yield "draws of ε, √n × distance", _distance_from_uniform(local, 0.5), 1.95
    if device != "cuda":
        yield left_out("draws under CUDA graphs")
        return
    content, tokens = torch.randn(8, 50, 64, device=device), tokens[:1, :50].repeat(8, 1)
    position(content, tokens)  # what is made once is there
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = position(content, tokens)
    replays = []
    for _ in range(6):
        graph.replay()
        replays.append(captured.clone())
    yield "draws: equal pairs of six replays of a graph", _equal_pairs(replays), 0
    compiled = torch.compile(position, mode="reduce-overhead", fullgraph=True)
    steps = []
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        steps.append(compiled(content, tokens).clone())
    yield "draws: equal pairs of six compiled steps with graphs", _equal_pairs(steps), 0


def _equal_pairs(found: list[Tensor]) -> int:
    return sum(torch.equal(one, other) for one, other in itertools.combinations(found, 2))
