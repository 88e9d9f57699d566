"""A training step of a CAPE ViT against timm's own ViT on the same batch, in one run.

python benchmarks/timm_step.py [--model vit_small] [--batch 8] [--device cuda] [--dtype bfloat16]
"""

import argparse

import timm
import torch
from common import machine, take_turns
from tabulate import tabulate

import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins import fused


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default="vit_small", choices=("vit_tiny", "vit_small", "vit_base")
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", help="of autocast")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    images = torch.randn(arguments.batch, 3, 224, 224, device=arguments.device)
    labels = torch.arange(arguments.batch, device=arguments.device)

    def trained(name: str, enabled: bool = True):
        model = timm.create_model(name).to(arguments.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            fused.ENABLED = enabled
            with torch.autocast(arguments.device, dtype, enabled=dtype != torch.float32):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    abspos, cape = f"{arguments.model}_patch16_224", f"{arguments.model}_patch16_cape_224"
    candidates = {
        abspos: trained(abspos),
        cape: trained(cape),
        f"{cape}, plain path": trained(cape, enabled=False),
    }
    unit, ratios = take_turns(candidates, abspos, arguments.rounds)
    print(
        f"{machine(arguments.device)}, {arguments.dtype}, batch {arguments.batch}; "
        f"a step of {abspos} takes {1e3 * unit:.0f} ms\n"
    )
    print(tabulate(ratios.items(), ["training step", "ratio"], tablefmt="github", floatfmt=".3f"))


if __name__ == "__main__":
    main()
