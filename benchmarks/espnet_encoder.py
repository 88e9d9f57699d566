"""A training step of the speech encoder for each pos, as multiples of sinpos, in one run.

python benchmarks/espnet_encoder.py [--paper-size] [--device cuda] [--dtype bfloat16] [--rounds 15]
python benchmarks/espnet_encoder.py --paper-size --layers 3     # on a CPU

A step is forward and backward, nothing else, in training mode. A batch has as many utterances of
10, 20 or 45 s as fit into --batch-seconds.

With --layers the encoder has fewer layers, of the same size. An encoder of one layer takes part in
the same turns, and the difference is the cost of the others: what a layer costs, and from it what
the whole encoder would. The more layers, the surer the estimate.
"""

import statistics

import torch
from tabulate import tabulate

from cape_plugins.espnet.transformer import SpeechTransformerEncoder
from cape_plugins.variants import names
from common import autocast, command, machine, take_turns

FRAMES_PER_SECOND = 100
SMALL = dict(output_size=256, attention_heads=4, linear_units=1024, num_blocks=4)
PAPER: dict[str, int] = {}  # the encoder's defaults


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=15)
    parser.add_argument("--paper-size", action="store_true", help="36 layers of 768 channels")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer than the whole, ≥ 2")
    parser.add_argument("--pos", nargs="+", default=("sinpos", "cape", "relpos"), choices=names(1))
    parser.add_argument("--seconds", nargs="+", type=int, default=(10, 20, 45))
    parser.add_argument("--batch-seconds", type=int, default=45, help="the paper: 240 on a GPU")
    arguments = parser.parse_args()
    if "sinpos" not in arguments.pos:
        parser.error("the others are compared with sinpos: --pos needs it")
    sizes = PAPER if arguments.paper_size else SMALL
    whole = sizes.get("num_blocks", 36)
    if arguments.layers is not None and not 2 <= arguments.layers < whole:
        parser.error(f"--layers must lie within 2 … {whole - 1}")
    depths = [whole] if arguments.layers is None else [arguments.layers, 1]
    encoders = {
        f"{pos} {depth}": SpeechTransformerEncoder(80, pos=pos, **{**sizes, "num_blocks": depth})
        .to(arguments.device)
        .train()
        for pos in arguments.pos
        for depth in depths
    }
    others = [pos for pos in arguments.pos if pos != "sinpos"]
    rows = []
    for seconds in arguments.seconds:
        batch = max(1, arguments.batch_seconds // seconds)
        frames = seconds * FRAMES_PER_SECOND
        features = torch.randn(batch, frames, 80, device=arguments.device)
        lengths = torch.full((batch,), frames, device=arguments.device)

        def step(encoder: SpeechTransformerEncoder, features=features, lengths=lengths) -> None:
            with autocast(arguments):
                out, _, _ = encoder(features, lengths)
            encoder.zero_grad()
            out.float().square().mean().backward()

        candidates = {
            name: lambda encoder=encoder, step=step: step(encoder)
            for name, encoder in encoders.items()
        }
        unit, cost = take_turns(candidates, f"sinpos {depths[0]}", arguments.rounds)
        row = [f"{batch} × {seconds} s", f"{1e3 * unit:.0f} ms"]
        row += [cost[f"{pos} {depths[0]}"] for pos in others]
        if len(depths) > 1:
            deep = {pos: cost[f"{pos} {depths[0]}"] for pos in arguments.pos}
            layer = {pos: (deep[pos] - cost[f"{pos} 1"]) / (depths[0] - 1) for pos in arguments.pos}
            # all but those of relpos are the same layers
            plain = statistics.mean(layer[pos] for pos in arguments.pos if pos != "relpos")
            layer = {pos: layer[pos] if pos == "relpos" else plain for pos in arguments.pos}
            full = {pos: deep[pos] + (whole - depths[0]) * layer[pos] for pos in arguments.pos}
            if "relpos" in others:
                row.append(layer["relpos"] / plain)
            row += [full[pos] / full["sinpos"] for pos in others]
        rows.append(row)
    encoder = encoders[f"sinpos {depths[0]}"]
    parameters = sum(p.numel() for p in encoder.parameters()) / 1e6
    print(
        f"{machine(arguments.device)}, {arguments.dtype}; {len(encoder.encoders)} layers of "
        f"{encoder.output_size()} channels, {parameters:.0f} M parameters; "
        "forward + backward in training mode\n"
    )
    head = ["batch", "sinpos", *others]
    if len(depths) > 1:
        head += ["a layer of relpos"] if "relpos" in others else []
        head += [f"{pos}, {whole} layers (estimated)" for pos in others]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".3f"))


if __name__ == "__main__":
    main()
