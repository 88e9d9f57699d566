"""Whether a GPU gives what the CPU gives: every variant, every host, draws, CUDA graphs.

    python benchmarks/parity.py [--device cuda] [--checks rotation relpos alibi constants …]
        [--quick] [--csv table.csv]

A line for each check, as soon as it is known: what was found, and how much is allowed. Ends with
status 1 where a check fails. ``--device cpu`` shows that the script runs: float32 then stands
against float64 of the same CPU.
"""

import argparse
import traceback
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

from cape_plugins import PositionalEmbedding, patch_grid, token_positions, variants
from cape_plugins.attention import AttentionSettings
from cape_plugins.augment import Draw
from common import Table, add_outputs, on_device
from parity_eager import alibi, constants, draws, relpos, rotation
from parity_hosts import compiled, hosts, twins
from parity_support import Check, Found, error

HEADS, DIM, TOKENS, BATCH = 4, 32, 49, 3


def core(device: str, quick: bool) -> Iterator[Found]:
    """Embedding and two layers of attention of every variant, with padding, and their gradients."""
    for axes in (1, 2):
        for pos in variants.names(axes)[:: 4 if quick else 1]:
            for training in (False, True):
                if training and pos.startswith("random"):
                    continue  # its positions are drawn, and another device draws others
                found = _core_error(pos, axes, training, device)
                mode = "training" if training else "evaluation"
                yield f"core, {axes} axes, {pos}, {mode}: float32 against float64", found, 2e-5


def _core_error(pos: str, axes: int, training: bool, device: str) -> float:
    """How far the device in float32 is from the CPU in float64, with the same Δ and λ."""
    torch.manual_seed(0)
    options: dict[str, float] = dict(max_length=60) if pos == "abspos" else {}
    taken = variants.get(pos).taken(axes)
    wanted = dict(max_global_shift=0.5, max_global_scale=1.4)
    options |= {name: value for name, value in wanted.items() if name in taken}
    position = PositionalEmbedding(HEADS * DIM, pos, axes=axes, **options).train(training)
    settings = AttentionSettings(head_dim=DIM, heads=HEADS, axes=axes, context=9)
    layers = nn.ModuleList(variants.attention_layers(pos, 2, settings, logn=10))
    positions = token_positions(torch.tensor([TOKENS, 30, 17]), TOKENS)
    if axes == 2:
        positions = patch_grid(7, 7)[None].repeat(BATCH, 1, 1)
    present = ~positions.isnan().reshape(BATCH, TOKENS, -1).any(dim=-1)
    content = torch.randn(BATCH, TOKENS, HEADS * DIM)
    draw = position.draw(BATCH, torch.device("cpu"))

    results = []
    for where, dtype in (("cpu", torch.float64), (device, torch.float32)):
        # .to moves the modules themselves; the wider dtype holds the weights exactly
        position, layers = position.to(where, dtype), layers.to(where, dtype)
        position.zero_grad()
        layers.zero_grad()
        x = content.to(where, dtype).requires_grad_()
        drawn = None if draw is None else Draw(*(each.to(where) for each in draw))
        moved = position.augment(positions.to(where, dtype), BATCH, drawn)
        attended = position.add(x, moved).unflatten(2, (HEADS, DIM)).transpose(1, 2)
        prepared = variants.prepare(pos, moved, settings)
        real = present.to(where)
        for layer in layers:
            attended, _ = layer(attended, attended, attended, prepared, real[:, None, None])
        out = attended.transpose(1, 2)[real]
        out.square().sum().backward()
        assert x.grad is not None
        weights = [w.grad.clone() for w in layers.parameters() if w.grad is not None]
        results.append([out.detach(), x.grad[real], *weights])
    return max(error(one, other) for one, other in zip(results[1], results[0], strict=True))


def far_out(device: str, quick: bool) -> Iterator[Found]:
    """Sinusoids of long sequences against float64."""
    tokens = 1000 if quick else 100_000
    for name, step, scale in (("tokens", 1.0, 1.0), ("frames of 30 ms", 0.03, 30.0)):
        positions = (torch.arange(tokens, dtype=torch.float64) * step)[None]
        position = PositionalEmbedding(64, "sinpos", frequency_scale=scale)
        given = position.embedding(positions.to(device))
        exact = position.embedding(positions, dtype=torch.float64)
        yield f"sinusoids at {tokens} {name}", float((given.cpu() - exact).abs().max()), 3e-6


# most wanted first: what never ran on a GPU, then what did
CHECKS: dict[str, Check] = {
    "rotation": rotation,
    "relpos": relpos,
    "alibi": alibi,
    "constants": constants,
    "draws": draws,
    "core": core,
    "hosts": hosts,
    "far_out": far_out,
    "twins": twins,
    "compiled": compiled,
}


def lines(name: str, check: Callable[[], Iterator[Found]]) -> Iterator[tuple[str, object, object]]:
    """What a check finds; an error ends the check, not the others."""
    try:
        yield from check()
    except ImportError as problem:
        yield f"{name}: left out, {problem}", None, None
    except Exception as problem:
        traceback.print_exc()
        message = " ".join(str(problem).split())[:200].replace("|", "/")
        yield f"{name}: {type(problem).__name__}: {message}", float("nan"), 0.0


def main() -> None:
    """Check and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu", type=on_device, choices=("cpu", "cuda"))
    parser.add_argument("--checks", nargs="+", default=CHECKS, choices=CHECKS)
    parser.add_argument("--quick", action="store_true", help="fewer variants, fewer draws")
    add_outputs(parser)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    table = Table(("check", "found", "allowed", "outcome"), arguments, "parity with the CPU")
    failed = 0
    for name in arguments.checks:
        check = CHECKS[name]
        for said, found, allowed in lines(
            name, lambda check=check: check(arguments.device, arguments.quick)
        ):
            outcome = "left out"
            if isinstance(found, (int, float)) and isinstance(allowed, (int, float)):
                outcome = "ok" if found <= allowed else "FAILED"  # NaN fails
                failed += outcome == "FAILED"
                found, allowed = f"{found:.2g}", f"{allowed:.2g}"
            table.add(check=said, found=found, allowed=allowed, outcome=outcome)
    table.end(f"{failed} checks failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
