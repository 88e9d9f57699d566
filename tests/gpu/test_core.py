"""The core on a GPU against the CPU in float64, and what eager mode computes in its own way."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cape_plugins import Draw, Given, Positions, Sizes, fused, patch_grid, token_positions, variants
from cape_plugins.alibi import Alibi
from cape_plugins.relpos import RelativePositions
from cape_plugins.rotary import Rotary
from cape_support import OURS

BATCH, HEADS, TOKENS, DIM = 3, 4, 49, 32
OPTIONS = dict(max_global_shift=0.5, max_local_shift=0.0, max_global_scale=1.4)
OPTIONS |= dict(abspos_context=60, relpos_context=9, random_range=50.0, pose_range=90.0)
EACH = [(axes, pos) for pos, axes in OURS]


def build(pos: str, axes: int) -> tuple[Positions, nn.ModuleList]:
    """Positions and two layers; the options are those that the variant takes."""
    taken = variants.get(pos, axes).options(axes)
    options = {name: value for name, value in OPTIONS.items() if name in taken}
    made = Positions(pos, dim=HEADS * DIM, heads=HEADS, layers=2, axes=axes, **options)
    return made, nn.ModuleList([one for one in made.hand_over() if one is not None])


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_every_variant_and_its_gradients_are_the_cpus(axes, pos, training, device, assert_near):
    if training and pos.startswith(("random", "pose")):
        pytest.skip("its positions are drawn, and another device draws others")
    positions, layers = build(pos, axes)
    positions.train(training)
    where = token_positions(torch.tensor([TOKENS, 30, 17]), TOKENS)
    if axes == 2:
        where = patch_grid(7, 7)[None].repeat(BATCH, 1, 1)
    present = ~where.isnan().reshape(BATCH, TOKENS, -1).any(dim=-1)
    content = torch.randn(BATCH, TOKENS, HEADS * DIM)
    draw = positions.draw(BATCH, torch.device("cpu"))
    results = []
    for there, dtype in (("cpu", torch.float64), (device, torch.float32)):
        # .to moves the modules themselves; the wider dtype holds the weights exactly
        for module in (positions, layers):
            module.to(there, dtype).zero_grad()
        x = content.to(there, dtype).requires_grad_()
        drawn = None if draw is None else Draw(*(each.to(there) for each in draw))
        real = present.to(there)
        out, given = positions(x, where.to(there, dtype), real[:, None], drawn)
        out = out.unflatten(2, (HEADS, DIM)).transpose(1, 2)
        for layer in layers:
            out, _ = layer(out, out, out, given)
        out = out.transpose(1, 2)[real]
        out.square().sum().backward()
        weights = [*positions.parameters(), *layers.parameters()]
        grads = [weight.grad.clone() for weight in weights if weight.grad is not None]
        results.append([out, x.grad[real], *grads])
    for found, wanted in zip(results[1], results[0], strict=True):
        assert_near(found, wanted, 2e-5)


@pytest.mark.parametrize(("step", "scale"), [(1.0, 1.0), (0.03, 30.0)], ids=["tokens", "frames"])
def test_sinusoids_far_out_are_those_of_float64(step, scale, device):
    where = (torch.arange(100_000, dtype=torch.float64) * step)[None]
    positions = Positions("sinpos", dim=64, frequency_scale=scale)
    found, _ = positions(None, where.to(device))
    exact, _ = positions(None, where, dtype=torch.float64)
    assert (found.cpu() - exact).abs().max() < 3e-6


def queries_and_keys(layout: str, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """(B, heads, N, d): of one projection (timm), or of two with another order (fairseq)."""
    if layout == "one":
        projected = torch.randn(BATCH, TOKENS, 3, HEADS, DIM, device=device).to(dtype)
        query, key, _ = projected.requires_grad_().permute(2, 0, 3, 1, 4).unbind()
        return query, key
    both = torch.randn(2, TOKENS, BATCH, HEADS, DIM, device=device).to(dtype).requires_grad_()
    query, key = both.unbind()
    return query.permute(1, 2, 0, 3), key.permute(1, 2, 0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", ["one", "two"])
def test_rotations_and_gradients_are_those_of_plain_operations(
    layout, dtype, device, assert_near, monkeypatch
):
    """The same bits on a CPU; CUDA may round a sum of two products once or twice."""
    rotary = Rotary(Sizes(dim=HEADS * DIM, heads=HEADS, axes=2))
    where = 2 * torch.rand(BATCH, TOKENS, 2, device=device) - 1
    given = rotary.prepare(where, where, None, dtype)
    both = queries_and_keys(layout, dtype, device)
    grads = [torch.randn(BATCH, HEADS, TOKENS, DIM, device=device).to(dtype) for _ in range(2)]
    results = []
    for on in (True, False):
        monkeypatch.setattr(fused.guard, "ON", on)
        rotated = rotary.embed_both(*both, given)
        found = torch.autograd.grad(rotated, both, grads, retain_graph=True)
        results.append([*rotated, *found])
    most = {"cpu": 0.0, "cuda": 1e-6 if dtype == torch.float32 else 1e-4}[device]
    for found, plain in zip(*results, strict=True):
        assert_near(found, plain, most)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tokens", [99, 1501], ids=["whole", "in parts"])
def test_relpos_is_that_of_plain_operations_in_float64(
    tokens, dtype, most, masked, device, assert_near, monkeypatch
):
    layer = RelativePositions(Sizes(dim=2 * DIM, heads=2), relpos_context=60)
    shape = (2, 2, tokens, DIM)
    inputs = [torch.randn(shape).to(dtype) for _ in range(3)]
    grad = torch.randn(shape).to(dtype)
    lengths = torch.tensor([tokens, tokens // 3])[:, None, None, None]
    mask = torch.arange(tokens) < lengths if masked else None
    results = []
    for there, wide, on in (("cpu", torch.float64, False), (device, dtype, True)):
        monkeypatch.setattr(fused.guard, "ON", on)
        layer.to(there, torch.float64 if not on else torch.float32)
        moved = [x.to(there, wide).requires_grad_() for x in inputs]
        own = None if mask is None else mask.to(there)
        out, _ = layer(*moved, Given(mask=own))
        weights = [*moved, layer.keys]
        results.append([out, *torch.autograd.grad(out, weights, grad.to(there, wide))])
    for found, wanted in zip(results[1], results[0], strict=True):
        assert_near(found, wanted, most)


def test_relpos_in_parts_drops_in_backward_what_forward_dropped(device):
    """The output is linear in the values: its product with a gradient is theirs."""
    layer = RelativePositions(Sizes(dim=2 * DIM, heads=2), relpos_context=60).to(device)
    query, key, value, grad = torch.randn(4, 1, 2, 1501, DIM, device=device).unbind()
    value.requires_grad_()
    out, _ = layer(query, key, value, dropout=0.3)
    (of_value,) = torch.autograd.grad(out, value, grad)
    forward, backward = (out * grad).double().sum(), (value * of_value).double().sum()
    assert (forward - backward).abs() / (out * grad).double().norm() < 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [64, 197])
@pytest.mark.parametrize("kernel", ["EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
def test_alibis_bias_is_right_under_each_attention_kernel(
    kernel, tokens, causal, device, assert_near
):
    """An H100 takes cuDNN's kernel for half precision from torch 2.11 on."""
    chosen = SDPBackend.MATH if device == "cpu" else getattr(SDPBackend, kernel)
    layer = Alibi(Sizes(dim=HEADS * DIM, heads=HEADS))
    where = token_positions(torch.tensor([tokens, tokens // 3]), tokens)
    # each sample has distances of its own, as under CAPE in training
    where = where * torch.tensor([[1.0], [1.3]])
    mask = ~where.isnan()[:, None]  # (2, 1, tokens)
    if causal:
        mask = mask & torch.ones(tokens, tokens).tril().bool()
    inputs = [torch.randn(2, HEADS, tokens, DIM).bfloat16() for _ in range(3)]
    grad = torch.randn(2, HEADS, tokens, DIM).bfloat16()
    results = []
    for there, dtype, backend in (
        ("cpu", torch.float64, SDPBackend.MATH),
        (device, torch.bfloat16, chosen),
    ):
        moved = [x.to(there, dtype).requires_grad_() for x in inputs]
        moved_to = where.to(there)[..., None]
        given = layer.prepare(moved_to, moved_to, mask.to(there), dtype)
        with sdpa_kernel(backend):
            out, _ = layer(*moved, given)
            results.append([out, *torch.autograd.grad(out, moved, grad.to(there, dtype))])
    for found, wanted in zip(results[1], results[0], strict=True):
        assert_near(found, wanted, 2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_a_query_that_sees_no_key_gets_nothing_and_gives_no_gradient(axes, pos, dtype, device):
    """With each kernel that PyTorch chooses by itself for a mask or a bias."""
    taken = OPTIONS.keys() & variants.get(pos, axes).options(axes)
    sizes = dict(dim=HEADS * DIM, heads=HEADS, layers=1, axes=axes)
    positions = Positions(pos, **sizes, **{name: OPTIONS[name] for name in taken})
    positions = positions.to(device, dtype).eval()
    where = torch.linspace(0, 1, TOKENS, device=device).expand(axes, 1, -1)
    where = where[0] if axes == 1 else where.permute(1, 2, 0)
    mask = torch.ones(BATCH, TOKENS, TOKENS, dtype=torch.bool, device=device)
    mask[1, 7] = False
    _, given = positions(None, where, mask, dtype=dtype)
    shape = (3, BATCH, HEADS, TOKENS, DIM)
    inputs = [x.requires_grad_() for x in torch.randn(shape, device=device, dtype=dtype).unbind()]
    for need_weights in (False, True):
        out, _ = positions.attentions[0](*inputs, given, need_weights=need_weights)
        assert not out[1, :, 7].any()
        found = torch.autograd.grad(out.float().square().sum(), inputs)
        assert all(one.isfinite().all() for one in (out, *found))


@pytest.mark.parametrize("axes", [1, 2])
def test_constants_are_right_in_graphs_on_side_streams_and_afterwards(axes, cuda):
    shape = (2, 50) if axes == 1 else (2, 50, 2)
    where, others = (torch.rand(shape, device=cuda) for _ in range(2))
    content = torch.randn(2, 50, 96, device=cuda)
    # what CUDA itself sets up at a first call may not be captured
    Positions("sinpos", dim=96, axes=axes).to(cuda).eval()(content, where)
    # settings that nothing else here has: their constants are not there yet
    positions = Positions("sinpos", dim=96, axes=axes, frequency_scale=1.25).to(cuda).eval()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = positions(content, where)
    eager, _ = positions(content, others)
    where.copy_(others)
    graph.replay()
    assert torch.equal(captured, eager)
    del graph, captured
    torch.cuda.empty_cache()
    assert torch.equal(positions(content, others)[0], eager)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side, _ = positions(content, others)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(on_side, eager)


def distance_from_uniform(values: Tensor, most: float) -> float:
    """Kolmogorov–Smirnov's statistic of values that should be uniform in ± most, × √n."""
    ordered = (values.flatten().double().cpu().sort().values + most) / (2 * most)
    steps = (torch.arange(len(ordered)) + 0.5) / len(ordered)
    return float((ordered - steps).abs().max()) * len(ordered) ** 0.5


BOUNDS = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4)


def test_draws_are_uniform(device):
    positions = Positions("cape", dim=64, **BOUNDS).train()
    draw = positions.draw(200_000, torch.device(device))
    # 1.95: passed by chance by one in 1,000
    assert distance_from_uniform(draw.shift, 5.0) < 1.95
    assert distance_from_uniform(draw.scale.log(), float(torch.tensor(1.4).log())) < 1.95
    none = Draw(torch.zeros(200, 1, device=device), torch.ones(200, device=device))
    tokens = torch.arange(1000.0, device=device)[None].repeat(200, 1)
    moved = positions.augment(tokens, 200, none)[..., 0]
    assert distance_from_uniform(moved - (tokens - tokens.mean(dim=1, keepdim=True)), 0.5) < 1.95


def test_each_replay_of_a_graph_draws_anew(cuda):
    positions = Positions("cape", dim=64, **BOUNDS).to(cuda).train()
    content = torch.randn(8, 50, 64, device=cuda)
    tokens = torch.arange(50.0, device=cuda)[None].repeat(8, 1)
    positions(content, tokens)  # what is made once is there
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = positions(content, tokens)
    replays = []
    for _ in range(6):
        graph.replay()
        replays.append(captured.clone())
    compiled = torch.compile(positions, mode="reduce-overhead", fullgraph=True)
    steps = []
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        steps.append(compiled(content, tokens)[0].clone())
    for found in (replays, steps):
        assert not any(torch.equal(one, other) for one, other in itertools.combinations(found, 2))
