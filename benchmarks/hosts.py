"""A model of each host for any variant of the table, and one forward to a loss.

Sizes are those that people train; ``TINY`` is for the tests. A case is left out where its host is
not installed.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins import Augmentation
from cape_plugins.variants import get, names

# what is trained, and what computes its loss
Model = tuple[nn.Module, Callable[[nn.Module], Tensor]]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_small": ("timm", dict(size="small", depth=12, image=224)),
    "vit_base": ("timm", dict(size="base", depth=12, image=224)),
    "wmt_base": ("fairseq", dict(layers=6, dim=512, heads=8, words=32768, length=64)),
    "asr_12": ("espnet", dict(layers=12, dim=256, heads=4, seconds=10)),
    "asr_36": ("espnet", dict(layers=36, dim=768, heads=4, seconds=10)),  # the paper's
    "conformer_12": ("espnet", dict(layers=12, dim=256, heads=4, seconds=10, conformer=True)),
    "conformer_12_30s": ("espnet", dict(layers=12, dim=256, heads=4, seconds=30, conformer=True)),
}
#: ESPnet's own Conformer with its relative positions, rel_pos
STOCK = "stock"
TINY: dict[str, dict[str, Any]] = {
    "timm": dict(size="tiny", depth=1, image=32),
    "fairseq": dict(layers=1, dim=64, heads=2, words=500, length=16),
    "espnet": dict(layers=1, dim=16, heads=2, seconds=1),
}


def names_of(host: str) -> tuple[str, ...]:
    """The variants of a host; timm's abspos is its own ViT, ESPnet's STOCK its own Conformer."""
    if host == "timm":
        return ("abspos", *names(2))
    return (*names(1), STOCK) if host == "espnet" else names(1)


def builder(
    case: str, batch: int, device: str, tiny: bool = False, **changed: Any
) -> Callable[[str], Model]:
    """What makes a case's model of a variant's name; ``changed`` are other sizes than its own.

    A seed gives the same data, and models of the same weights, for every device.

    Raises:
        ImportError: its host is missing.
    """
    host, sizes = CASES[case]
    if tiny:
        sizes = TINY[host] | {k: v for k, v in sizes.items() if k == "conformer"}
    sizes = sizes | changed
    return {"timm": _timm, "fairseq": _fairseq, "espnet": _espnet}[host](batch, device, **sizes)


def vit_name(size: str, pos: str) -> str:
    """timm's name of a ViT; ``pos`` may be a part of it that is no variant, as of its twins."""
    from cape_plugins.timm.registry import variants_by_name

    if pos == "abspos":
        return f"vit_{size}_patch16_224"
    ours = (name for name, given in variants_by_name().items() if given == dict(pos=pos))
    named = next(ours, pos)
    return f"vit_{size}_patch16_{named}_224"


def _timm(batch: int, device: str, size: str, depth: int, image: int) -> Callable[[str], Model]:
    import timm

    import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

    images = torch.randn(batch, 3, image, image).to(device)
    labels = torch.arange(batch, device=device)

    def build(pos: str) -> Model:
        model = timm.create_model(vit_name(size, pos), depth=depth, img_size=image)
        return model, lambda model: F.cross_entropy(model(images), labels)

    return build


def _fairseq(
    batch: int, device: str, layers: int, dim: int, heads: int, words: int, length: int
) -> Callable[[str], Model]:
    from fairseq.data import Dictionary
    from fairseq.models import MODEL_REGISTRY

    import cape_plugins.fairseq  # noqa: F401 - registers

    kind = MODEL_REGISTRY["cape_transformer"]
    dictionary = Dictionary()
    for i in range(words - len(dictionary)):
        dictionary.add_symbol(str(i))
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    one_side = dict(embed_dim=dim, ffn_embed_dim=4 * dim, attention_heads=heads, layers=layers)
    sizes = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in one_side.items()}
    tokens = torch.randint(dictionary.nspecial, words, (2, batch, length))
    source, target = tokens.to(device)
    lengths = torch.full((batch,), length, device=device)

    def build(pos: str) -> Model:
        scale = (
            dict(source_scale=1.0)
            if get(pos, 1).adds and get(pos, 1).augments is Augmentation
            else {}
        )
        config = kind.config(
            pos=pos,
            share_all_embeddings=True,
            source_bos="false",  # one token more would be in the ratio
            **scale,
            **sizes,
        )
        model = kind.build_model(config, task)
        return model, lambda model: F.cross_entropy(
            model(source, lengths, target)[0].flatten(0, 1), target.flatten()
        )

    return build


def _espnet(
    batch: int,
    device: str,
    layers: int,
    dim: int,
    heads: int,
    seconds: int,
    conformer: bool = False,
) -> Callable[[str], Model]:
    from cape_plugins.espnet.encoder import CapeConformerEncoder
    from cape_plugins.espnet.transformer import SpeechTransformerEncoder

    kind = CapeConformerEncoder if conformer else SpeechTransformerEncoder
    frames = 100 * seconds
    features = torch.randn(batch, frames, 80).to(device)
    lengths = torch.full((batch,), frames, device=device)

    def build(pos: str) -> Model:
        sizes = dict(
            output_size=dim, attention_heads=heads, linear_units=4 * dim, num_blocks=layers
        )
        if pos == STOCK:
            from espnet2.asr.encoder.conformer_encoder import ConformerEncoder

            encoder = ConformerEncoder(80, rel_pos_type="latest", **sizes)
        else:
            encoder = kind(80, pos=pos, **sizes)
        return encoder, lambda model: model(features, lengths)[0].float().square().mean()

    return build
