"""What positions cost in a Transformer, as multiples of one without any: the paper's Table 9.

    python benchmarks/relpos_cost.py [--device cuda] [--dtype bfloat16] [--lengths 10 100 1000]
        [--contexts 100 1000] [--batch 50] [--layers 6] [--rounds 5] [--csv table.csv]
    cape-run relpos_cost --gpus 1

Forward and backward of one encoder layer, of an encoder and of a decoder, as cape_transformer has
them in fairseq: 768 channels, 8 heads, FFN 3072, training mode without dropout. The paper takes
batches of 50, on a GPU; here the CPU takes smaller ones where sequences are long.

Ratios are taken within a turn in which all candidates run, so that a machine which slows down
slows all of them. sinpos and cape add positions before the first layer, so they have no part in the
cost of one layer. Their difference is small, hence measured in turns of their own.
"""

import argparse
import itertools
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf
from torch import nn

from cape_plugins.attention import NOTHING
from cape_plugins.fairseq.layers import FairseqCapeEncoderLayer
from cape_plugins.fairseq.options import HOST, FairseqCapeConfig, choose
from cape_plugins.fairseq.transformer import FairseqCapeDecoder, FairseqCapeEncoder
from common import Table, append_csv, command, take_turns

DIM, HEADS, FFN = 768, 8, 3072
PARTS = ("layer", "encoder", "decoder")
POS = ("sinpos", "cape", "relpos")
WORDS = 1000
# tokens in a batch on the CPU, so that one turn takes seconds
CPU_TOKENS = {"layer": 1000, "encoder": 300, "decoder": 300}


def options(pos: str, layers: int, context: int = 150) -> TransformerConfig:
    """cape_transformer's settings for one variant."""
    sizes = dict(embed_dim=DIM, ffn_embed_dim=FFN, attention_heads=HEADS, layers=layers)
    config = FairseqCapeConfig(
        pos=pos,
        **({"relpos_context": context} if pos == "relpos" else {}),
        source_scale=1.0 if pos == "cape" else 0.0,
        source_bos="false",  # one token more would be in the ratio
        dropout=0.0,
        no_token_positional_embeddings=True,
        **{f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()},
    )
    whole = OmegaConf.create({"model": OmegaConf.structured(config)})
    values = OmegaConf.to_container(whole.model, resolve=True, enum_to_str=True)
    values.update(decoder_input_dim=DIM, decoder_output_dim=DIM)
    return TransformerConfig.from_namespace(Namespace(**values))


def build(
    part: str,
    pos: str,
    arguments: argparse.Namespace,
    dtype: str,
    batch: int,
    length: int,
    context: int = 150,
) -> Callable[[], object]:
    """One forward and backward of a part, on random tokens."""
    where = dict(device=arguments.device, dtype=getattr(torch, dtype))
    cfg = options(pos, arguments.layers, context)
    words = Dictionary()
    for i in range(WORDS - len(words)):
        words.add_symbol(str(i))
    tokens = torch.randint(words.nspecial, WORDS, (batch, length), device=arguments.device)
    embed = nn.Embedding(WORDS, DIM, words.pad())
    if part == "layer":
        chosen = choose(vars(cfg)).options
        (attention,) = HOST.positions(pos, chosen, dim=DIM, heads=HEADS, layers=1).hand_over()
        layer = FairseqCapeEncoderLayer(cfg, positional=attention).to(**where)
        content = torch.randn(length, batch, DIM, requires_grad=True, **where)
        return _step(layer, lambda: layer(content, encoder_padding_mask=None, given=NOTHING))
    if part == "encoder":
        encoder = FairseqCapeEncoder(cfg, words, embed).to(**where)
        return _step(encoder, lambda: encoder(tokens)["encoder_out"][0])
    # a decoder without a source, so that what differs is not diluted by cross-attention
    decoder = FairseqCapeDecoder(cfg, words, embed, no_encoder_attn=True).to(**where)
    return _step(decoder, lambda: decoder(tokens, None, features_only=True)[0])


def _step(module: nn.Module, forward: Callable[[], torch.Tensor]) -> Callable[[], None]:
    def step() -> None:
        module.zero_grad()
        forward().sum().backward()

    return step


def measure(part: str, length: int, dtype: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One row of the table."""
    batch = arguments.batch
    if batch is None:
        batch = 50
        if arguments.device == "cpu":
            batch = max(1, min(batch, CPU_TOKENS[part] // length))
    shape = arguments, dtype, batch, length
    absolute = [pos for pos in arguments.pos if pos != "relpos" and part != "layer"]
    candidates = {pos: build(part, pos, *shape) for pos in ("nopos", *absolute)}
    for context in arguments.contexts if "relpos" in arguments.pos else ():
        candidates[f"relpos {context}"] = build(part, "relpos", *shape, context)
    row: dict[str, object] = {"dtype": dtype, "part": part, "length": length, "batch": batch}
    unit, ratios = take_turns(candidates, "nopos", arguments.rounds)
    row["nopos, ms"] = 1e3 * unit
    contexts = [f"relpos {context}" for context in arguments.contexts]
    row |= {name: ratios.get(name) for name in ("sinpos", "cape", *contexts)}
    row["cape / sinpos"] = None
    if len(absolute) == 2:
        two = {pos: candidates[pos] for pos in absolute}
        row["cape / sinpos"] = take_turns(two, "sinpos", 2 * arguments.rounds)[1]["cape"]
    return row


def scores(rows: Sequence[Mapping[str, object]]) -> Iterator[dict[str, object]]:
    """As cape-run wants them, of one candidate beside nopos."""
    for row in rows:
        condition = f"{row['dtype']} {row['part']} {row['length']}"
        for name in ("sinpos", "cape", *(name for name in row if name.startswith("relpos"))):
            if row[name] is not None:
                about = {"condition": condition, "metric": "ratio", "value": row[name]}
                yield {**about, "items": row["batch"]}


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=5, dtypes="+")
    parser.add_argument("--pos", nargs="+", default=POS, choices=POS, help="beside nopos")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--lengths", nargs="+", type=int, default=(10, 100, 1000), metavar="TOKENS")
    parser.add_argument("--contexts", nargs="+", type=int, default=(100, 1000), metavar="TOKENS")
    parser.add_argument("--batch", type=int, help="sentences; default: 50, on the CPU fewer")
    parser.add_argument("--layers", type=int, default=6, help="of encoder and decoder")
    study = parser.add_argument_group("as cape-run's trainer and evaluation")
    study.add_argument("--out", type=Path, help="folder for cost.csv, the scores")
    study.add_argument("--read", type=Path, help="only copy such a file to --csv")
    study.add_argument("--seed", type=int, default=0, help="of the random tokens")
    arguments = parser.parse_args()
    if arguments.read:
        shutil.copyfile(arguments.read, arguments.csv)
        return
    torch.manual_seed(arguments.seed)
    contexts = [f"relpos {context}" for context in arguments.contexts]
    shown = ["dtype", "part", "length", "batch", "nopos, ms", "sinpos", "cape", *contexts]
    title = f"forward + backward, {arguments.layers} layers in encoder and decoder, 1 is nopos"
    printed = Table([*shown, "cape / sinpos"], arguments, title)
    rows = []
    shapes = list(itertools.product(arguments.dtype, arguments.parts, arguments.lengths))
    for step, (dtype, part, length) in enumerate(shapes, 1):
        rows.append(measure(part, length, dtype, arguments))
        printed.add(**rows[-1])
        print(f"step {step}/{len(shapes)}", rows[-1], file=sys.stderr)  # it takes a while
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        table = arguments.out / "cost.csv"
        table.unlink(missing_ok=True)  # of a run that was killed
        append_csv(table, list(scores(rows)))


if __name__ == "__main__":
    main()
