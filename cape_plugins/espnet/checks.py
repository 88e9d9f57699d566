"""Small encoders of ESPnet for :mod:`cape_plugins.inside`."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from cape_plugins.espnet.encoder import CapeConformerEncoder, InSeconds
from cape_plugins.espnet.options import HOST
from cape_plugins.espnet.transformer import SpeechTransformerEncoder
from cape_plugins.inside import Kind, Places

_FEATURES = 20


class _Encoder(Kind):
    host = HOST

    def __init__(self, name: str, own: type[InSeconds], **options: Any) -> None:
        self.name, self.own, self.options = f"ESPnet's {name}", own, options

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        torch.manual_seed(seed)
        sizes = dict(output_size=16, attention_heads=2, num_blocks=2, linear_units=32)
        return self.own(_FEATURES, pos=pos, **{**sizes, **self.options, **options})

    def stack(self, model: Any) -> Any:
        return SimpleNamespace(layers=model.encoders, positions=model.positions)

    def samples(self) -> list[Tensor]:
        drawn = torch.Generator().manual_seed(0)
        return [torch.randn(frames, _FEATURES, generator=drawn) for frames in (60, 43)]

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        padded = nn.utils.rnn.pad_sequence([*samples], batch_first=True, padding_value=9.0)
        out, lengths, _ = model(padded, torch.tensor([*map(len, samples)]))
        return [row[:length] for row, length in zip(out, lengths, strict=True)]

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        counts = [len(range(model.reach, len(one), model.stride)) for one in samples]
        index = torch.arange(max(counts), dtype=torch.float64)
        real = index < torch.tensor(counts)[:, None]
        seconds = (index * model.stride + model.reach // 2) * model.frame_shift
        where = torch.where(real, seconds, torch.nan)
        return Places(where, real[:, None], real)


KINDS = (
    _Encoder("cape_transformer", SpeechTransformerEncoder),
    _Encoder("cape_conformer", CapeConformerEncoder, cnn_module_kernel=7, macaron_style=True),
)
