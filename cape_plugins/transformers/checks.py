"""Small models of transformers for :mod:`cape_plugins.inside`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from cape_plugins.inside import Kind, Places
from cape_plugins.positions import Positions
from cape_plugins.transformers.models import CapeEuroBertModel, CapeLlamaModel
from cape_plugins.transformers.options import DECODER, ENCODER


class _Model(Kind):
    own: type[Any]

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        """Of four heads and two layers; weights are so large that positions matter."""
        torch.manual_seed(seed)
        config = self.own.config_class(
            pos=pos,
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
            **options,
        )
        return self.own(config)

    def samples(self) -> list[Tensor]:
        """Tokens of two texts."""
        drawn = torch.Generator().manual_seed(0)
        return [torch.randint(4, 97, (length,), generator=drawn) for length in (7, 5)]

    def batch(self, samples: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens (B, N), padded on the left, and transformers' mask."""
        longest = max(map(len, samples))
        rows = [nn.functional.pad(one, (longest - len(one), 0)) for one in samples]
        tokens = torch.stack(rows)
        return tokens, (tokens != 0).long()

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        """The last hidden states."""
        tokens, mask = self.batch(samples)
        return _real(model(tokens, attention_mask=mask).last_hidden_state, samples)

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        """Tokens are counted without their padding."""
        tokens, mask = self.batch(samples)
        real = mask.bool()
        where = (mask.cumsum(1) - 1).float().masked_fill(~real, torch.nan)
        seen = real[:, None].expand(-1, tokens.shape[1], -1)
        return Places(where, seen.tril() if self.causal else seen, real)

    def scale(self, core: Positions) -> float:
        """Where sinusoids are added, content is √dim times as large."""
        return core.content_scale

    def reload(self, model: Any, new: Any, folder: Path) -> nn.Module:
        """By ``from_pretrained``."""
        model.save_pretrained(folder)
        return self.own.from_pretrained(folder)


class _Llama(_Model):
    name, own, causal, takes_content = "transformers' cape_llama", CapeLlamaModel, True, False
    sets = DECODER.sets

    def cached(self, model: Any, samples: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
        """Two tokens, three at once, and one by one."""
        tokens, mask = self.batch(samples)
        length = tokens.shape[1]
        caches: dict[str, Any] = dict(
            dynamic=DynamicCache(config=model.config),
            static=StaticCache(config=model.config, max_cache_len=length + 3),
        )
        steps = [0, 2, 5, *range(6, length + 1)]
        for how, cache in caches.items():
            found = []
            for start, stop in pairwise(steps):
                out = model(
                    tokens[:, start:stop],
                    attention_mask=mask[:, :stop],
                    past_key_values=cache,
                    use_cache=True,
                )
                found.append(out.last_hidden_state)
            yield how, _real(torch.cat(found, dim=1), samples)

    def packed(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor] | None:
        """By ``position_ids`` that begin again."""
        where = torch.cat([torch.arange(len(one)) for one in samples])[None]
        out = model(torch.cat([*samples])[None], position_ids=where, use_cache=False)
        return [*out.last_hidden_state[0].split([len(one) for one in samples])]


class _EuroBert(_Model):
    name, own, sets = "transformers' cape_eurobert", CapeEuroBertModel, ENCODER.sets


def _real(out: Tensor, samples: Sequence[Tensor]) -> list[Tensor]:
    return [row[out.shape[1] - len(one) :] for row, one in zip(out, samples, strict=True)]


KINDS = (_Llama(), _EuroBert())
