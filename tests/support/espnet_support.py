"""Our encoders, small and with weights that hide nothing; what they are given; speech."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from cape_plugins.variants import names

TABLE = names(axes=1)
ESPNETS = ("cape_conformer", "cape_e_branchformer", "cape_branchformer")
ALL = ("cape_transformer", *ESPNETS)
# every variant in the Transformer, one of each kind in the others, which share its code
OURS = [("cape_transformer", pos) for pos in TABLE]
OURS += [(n, p) for n in ESPNETS for p in ("abspos", "cape", "relpos_first", "cape_rope", "alibi")]
MATRIX = [*OURS, *((name, "espnet_rel_pos") for name in ALL)]

matrix = pytest.mark.parametrize(("name", "pos"), MATRIX)
table = pytest.mark.parametrize(("name", "pos"), OURS)
each_kind = pytest.mark.parametrize(
    ("name", "pos"),
    [("cape_transformer", pos) for pos in ("cape", "relpos", "rope", "alibi", "random")]
    + [(name, pos) for name in ESPNETS for pos in ("cape", "relpos")],
)
every_encoder = pytest.mark.parametrize("name", ALL)

RATE = 8000  # of the speech, in Hz
FEATURES = 20
STOCK = {  # ESPnet's frontend
    "frontend": "default",
    "frontend_conf": dict(fs="8k", n_fft=256, win_length=200, hop_length=80, n_mels=FEATURES),
}
SIZES = dict(output_size=16, attention_heads=2, num_blocks=2)
CONFORMER = dict(linear_units=32, cnn_module_kernel=7, macaron_style=True, rel_pos_type="latest")
BRANCHES = dict(cgmlp_linear_units=32, cgmlp_conv_kernel=7)
OPTIONS = {
    "cape_transformer": dict(linear_units=32, conv_dropout_rate=0.0, layer_drop_rate=0.0),
    "cape_conformer": CONFORMER,
    "cape_e_branchformer": {**BRANCHES, "use_ffn": True},
    "cape_branchformer": BRANCHES,
}


def kind_of(name: str) -> type:
    """The class of ``encoder: name``."""
    from espnet2.tasks.asr import encoder_choices

    return encoder_choices.classes[name]


def make(name: str = "cape_transformer", pos: str = "cape", perturb: bool = True, **options):
    """An encoder without dropout; every parameter is off its first value.

    Ours have a ``pos``; ESPnet's, by the name without ``cape_``, have the sizes of ours.
    """
    torch.manual_seed(0)
    quiet = dict(dropout_rate=0.0, positional_dropout_rate=0.0, attention_dropout_rate=0.0)
    sizes = OPTIONS.get(name, OPTIONS.get(f"cape_{name}", {}) if name != "transformer" else {})
    given = {**SIZES, **quiet, **sizes, **options}
    encoder = kind_of(name)(FEATURES, **given, **({"pos": pos} if "cape" in name else {}))
    for parameter in encoder.parameters() if perturb else ():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return encoder


def batch(*lengths: int) -> tuple[Tensor, Tensor]:
    """Features (B, T, 20) and lengths."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


def assert_alone(encoder, features, lengths, **extra) -> None:
    """Each utterance gives, frame by frame, what it gives alone."""

    def run(*inputs):
        out, olens, _ = encoder(*inputs, **extra)
        whole, inside = out if isinstance(out, tuple) else (out, [])
        return [whole, *(one for _, one in inside)], olens

    outs, olens = run(features, lengths)
    assert outs[0].shape[1] == olens.max()
    for row, length in enumerate(lengths.tolist()):
        alone, count = run(features[row, None, :length], lengths[row, None])
        assert count.item() == olens[row]
        for out, one in zip(outs, alone, strict=True):
            torch.testing.assert_close(out[row, : olens[row]], one[0], rtol=0, atol=1.5e-5)


def audio(*seconds: float) -> tuple[Tensor, Tensor]:
    """Samples (B, N) of noise, zero in padding, and their lengths."""
    generator = torch.Generator().manual_seed(0)
    sizes = [round(duration * RATE) for duration in seconds]
    speech = [0.1 * torch.randn(samples, generator=generator) for samples in sizes]
    lengths = torch.tensor([len(samples) for samples in speech])
    return nn.utils.rnn.pad_sequence(speech, batch_first=True), lengths


@contextmanager
def process(rank: int, processes: int) -> Iterator[None]:
    """As one of several processes; no group is joined where there are none."""
    if processes:
        group = dict(store=FakeStore(), rank=rank, world_size=processes)
        torch.distributed.init_process_group("fake", **group)
    try:
        yield
    finally:
        if processes:
            torch.distributed.destroy_process_group()
