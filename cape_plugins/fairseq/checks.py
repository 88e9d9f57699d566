"""Small models of fairseq for :mod:`cape_plugins.inside`."""

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

from cape_plugins.fairseq.options import HOST, aligns_source, plain_options
from cape_plugins.inside import Kind, Places
from cape_plugins.variants import get

_WORDS = [f"word{number}" for number in range(40)]
_TASK = dict(add_bos_token=False, tokens_per_sample=64, max_target_positions=64)
_SIZES = dict(embed_dim=16, ffn_embed_dim=32, attention_heads=2, layers=2)


class _Stack(Kind):
    arch = ""
    takes_content, sets, time_first = False, HOST.sets, True

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        """Of two heads and two layers; options of another package's variant are JSON."""
        model = MODEL_REGISTRY[self.arch]
        small: dict[str, Any] = dict(dropout=0.0, decoder_input_dim=16, decoder_output_dim=16)
        small |= {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in _SIZES.items()}
        small |= dict(source_bos="false")
        small |= dict(source_scale=1.25) if aligns_source(get(pos, axes=1)) else {}
        whole = dict(model=model.config(), task=_TASK, common=dict(tpu=False))
        plain = plain_options(OmegaConf.create(whole).model)
        plain |= {name: value for name, value in small.items() if name in plain}
        plain |= {name: value for name, value in options.items() if name in HOST.ours}
        theirs = {name: value for name, value in options.items() if name not in HOST.ours}
        plain |= {"pos": pos, "pos_options": json.dumps(theirs)}
        config = OmegaConf.create(dict(model=plain)).model
        words = Dictionary()
        for word in _WORDS:
            words.add_symbol(word)
        torch.manual_seed(seed)
        task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
        return model.build_model(config, task)

    def samples(self) -> list[Tensor]:
        """Tokens of two sentences."""
        drawn = torch.Generator().manual_seed(0)
        return [torch.randint(4, 44, (length,), generator=drawn) for length in (7, 5)]

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        """Tokens are counted without their padding, α apart in the source."""
        real = self.batch(samples) != 1
        where = (real.cumsum(1) - 1.0) * getattr(self.stack(model), "spacing", 1.0)
        seen = real[:, None].expand(-1, real.shape[1], -1)
        where = where.masked_fill(~real, torch.nan)
        return Places(where, seen.tril() if self.causal else seen, real)

    def batch(self, samples: Sequence[Tensor]) -> Tensor:
        """Tokens (B, N), padded as fairseq pads them."""
        rows = [one if self.causal else one.flip(0) for one in samples]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
        return tokens if self.causal else tokens.flip(1)


class _Encoder(_Stack):
    name, arch = "fairseq's cape_transformer, its encoder", "cape_transformer"

    def stack(self, model: Any) -> Any:
        """The encoder."""
        return model.encoder

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        """What the encoder gives."""
        lengths = torch.tensor([*map(len, samples)])
        out = model.encoder(self.batch(samples), lengths)["encoder_out"][0].transpose(0, 1)
        return [row[len(row) - len(one) :] for row, one in zip(out, samples, strict=True)]


class _Decoder(_Stack):
    name, arch, causal = "fairseq's cape_transformer_lm", "cape_transformer_lm", True

    def stack(self, model: Any) -> Any:
        """The decoder."""
        return model.decoder

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        """The features of the decoder."""
        out, _ = model.decoder(self.batch(samples), features_only=True)
        return [row[: len(one)] for row, one in zip(out, samples, strict=True)]

    def cached(self, model: Any, samples: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
        """Token by token, each text by itself: in fairseq's search no row is padded."""
        found = []
        for one in samples:
            state: dict[str, Any] = {}
            so_far = [one[None, :count] for count in range(1, len(one) + 1)]
            named = dict(incremental_state=state, features_only=True)
            found.append(torch.cat([model.decoder(x, **named)[0][0] for x in so_far]))
        yield "incremental", found


KINDS = (_Encoder(), _Decoder())
