"""A training step of the speech encoder for each pos, as multiples of sinpos, in one run.

python benchmarks/espnet_encoder.py [--paper-size] [--device cuda] [--dtype bfloat16] [--rounds 15]

A step is forward and backward, nothing else, in training mode. A batch has as many utterances of
10, 20 or 45 s as fit into --batch-seconds.
"""

import argparse

import torch
from common import machine, take_turns
from tabulate import tabulate

from cape_plugins.espnet.encoder import CapeTransformerEncoder

FRAMES_PER_SECOND = 100
SMALL = dict(output_size=256, attention_heads=4, linear_units=1024, num_blocks=4)
PAPER: dict[str, int] = {}  # the encoder's defaults
VARIANTS = ("sinpos", "cape", "relpos", "relpos_first", "nopos", "abspos")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper-size", action="store_true", help="36 layers of 768 channels")
    parser.add_argument("--pos", nargs="+", default=VARIANTS[:3], choices=VARIANTS)
    parser.add_argument("--seconds", nargs="+", type=int, default=(10, 20, 45))
    parser.add_argument("--batch-seconds", type=int, default=45, help="the paper: 240 on a GPU")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", help="of autocast")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if "sinpos" not in arguments.pos:
        parser.error("the others are compared with sinpos: --pos needs it")
    dtype = getattr(torch, arguments.dtype)
    sizes = PAPER if arguments.paper_size else SMALL
    encoders = {
        pos: CapeTransformerEncoder(80, pos=pos, **sizes).to(arguments.device).train()
        for pos in arguments.pos
    }
    rows = []
    for seconds in arguments.seconds:
        batch = max(1, arguments.batch_seconds // seconds)
        frames = seconds * FRAMES_PER_SECOND
        features = torch.randn(batch, frames, 80, device=arguments.device)
        lengths = torch.full((batch,), frames, device=arguments.device)

        def step(encoder: CapeTransformerEncoder, features=features, lengths=lengths) -> None:
            with torch.autocast(arguments.device, dtype, enabled=dtype != torch.float32):
                out, _, _ = encoder(features, lengths)
            encoder.zero_grad()
            out.float().square().mean().backward()

        candidates = {
            pos: lambda encoder=encoder, step=step: step(encoder)
            for pos, encoder in encoders.items()
        }
        unit, ratios = take_turns(candidates, "sinpos", arguments.rounds)
        others = [ratios[pos] for pos in encoders if pos != "sinpos"]
        rows.append([f"{batch} × {seconds} s", f"{1e3 * unit:.0f} ms", *others])
    encoder = encoders["sinpos"]
    parameters = sum(p.numel() for p in encoder.parameters()) / 1e6
    print(
        f"{machine(arguments.device)}, {arguments.dtype}; {len(encoder.layers)} layers of "
        f"{encoder.output_size()} channels, {parameters:.0f} M parameters; "
        "forward + backward in training mode\n"
    )
    head = ["batch", "sinpos", *(pos for pos in encoders if pos != "sinpos")]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".3f"))


if __name__ == "__main__":
    main()
