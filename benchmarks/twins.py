"""A training step of timm's models: our twins and our ViTs beside the stock model, in one run.

    python benchmarks/twins.py [--stock vit_small_patch16_rope_mixed_224 …] [--batch 128]
        [--device cuda] [--dtype bfloat16] [--rounds 15] [--csv table.csv] [--label before]

Forward, backward and AdamW. Each model takes turns with the stock one, and its row is printed
before the next is built.
"""

from argparse import Namespace
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F

import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off
from common import Table, autocast, command, peak_bytes, take_turns

# timm's model → ours that compare with it; most wanted first
GROUPS = {
    "vit_small_patch16_rope_mixed_224": ("vit_small_patch16_rope_mixed_cape_224",),
    "vit_small_patch16_rope_224": (
        "vit_small_patch16_rope_cape_224",
        "vit_small_patch16_ropepos_224",
        "vit_small_patch16_cape_rope_224",
    ),
    "vit_small_patch16_224": (
        "vit_small_patch16_cape_224",
        "vit_small_patch16_sinpos_224",
        "vit_small_patch16_nopos_224",
    ),
    "vit_small_patch16_dinov3": ("vit_small_patch16_dinov3_cape",),
    "eva02_tiny_patch14_224": ("eva02_tiny_patch14_cape_224",),
}
SHOWN = ("model", "ms", "step", "memory")


def training_step(name: str, arguments: Namespace) -> Callable[[], None]:
    """Forward, backward and AdamW of a model at 224 × 224, of one block with ``--tiny``."""
    sizes = dict(depth=1) if arguments.tiny else {}
    model = timm.create_model(name, num_classes=10, img_size=224, **sizes)
    model.to(arguments.device).train()
    images = torch.randn(arguments.batch, 3, 224, 224).to(arguments.device)
    labels = torch.arange(arguments.batch, device=arguments.device) % 10
    fused = arguments.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused)

    def step() -> None:
        with autocast(arguments):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=15)
    parser.add_argument("--stock", nargs="+", default=GROUPS, choices=GROUPS)
    parser.add_argument("--batch", type=int, default=128, help="images")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    arguments = parser.parse_args()
    title = f"{arguments.dtype}, batch {arguments.batch}, 1 is the stock model above"
    table = Table(SHOWN, arguments, title)
    for stock in arguments.stock:
        of_stock = training_step(stock, arguments)
        stock_memory = peak_bytes(of_stock, arguments.device)
        for name in (stock, *GROUPS[stock]):
            step = of_stock if name == stock else training_step(name, arguments)
            memory = peak_bytes(step, arguments.device)
            candidates = {stock: of_stock, name: step}
            seconds, ratios = take_turns(candidates, stock, arguments.rounds)
            table.add(
                stock=stock,
                model=name,
                batch=arguments.batch,
                dtype=arguments.dtype,
                ms=1e3 * seconds * ratios[name],
                step=ratios[name],
                memory=memory / stock_memory,
            )
            del step, candidates
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
