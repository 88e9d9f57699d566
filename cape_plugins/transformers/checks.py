"""Small models of transformers for :mod:`cape_plugins.inside`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from cape_plugins.inside import TokenKind
from cape_plugins.transformers.models import CapeEuroBertModel, CapeLlamaModel
from cape_plugins.transformers.options import DECODER, ENCODER

# of two layers; weights are so large that positions matter
_SIZES: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    initializer_range=0.15,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    mask_token_id=3,
)


class _Encoder(TokenKind):
    name, host, own = "transformers' cape_eurobert", ENCODER, CapeEuroBertModel
    pads_left, scales = True, True

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        torch.manual_seed(seed)
        return self.own(self.own.config_class(pos=pos, **_SIZES, **options))

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        tokens = self.batch(samples)
        out = model(tokens, attention_mask=(tokens != 0).long())
        return self.unpadded(out.last_hidden_state, samples)

    def reload(self, model: Any, new: Any, folder: Path) -> nn.Module:
        model.save_pretrained(folder)
        return self.own.from_pretrained(folder)


class _Decoder(_Encoder):
    name, host, own = "transformers' cape_llama", DECODER, CapeLlamaModel
    causal, takes_content = True, False

    def ways(self, model: Any, samples: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
        tokens = self.batch(samples)
        mask, length = (tokens != 0).long(), tokens.shape[1]
        caches: dict[str, Any] = dict(
            dynamic=DynamicCache(config=model.config),
            static=StaticCache(config=model.config, max_cache_len=length + 3),
        )
        for how, cache in caches.items():
            found = []
            for start, stop in pairwise([0, 2, 5, *range(6, length + 1)]):
                how_far: dict[str, Any] = dict(attention_mask=mask[:, :stop], use_cache=True)
                out = model(tokens[:, start:stop], past_key_values=cache, **how_far)
                found.append(out.last_hidden_state)
            yield f"in steps with a {how} cache", self.unpadded(torch.cat(found, dim=1), samples)

        lengths = [*map(len, samples)]
        where = torch.cat([*map(torch.arange, lengths)])[None]
        out = model(torch.cat([*samples])[None], position_ids=where, use_cache=False)
        yield "packed into one row", [*out.last_hidden_state[0].split(lengths)]


KINDS = (_Decoder(), _Encoder())
