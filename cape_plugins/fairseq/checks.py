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
from cape_plugins.inside import Places, TokenKind
from cape_plugins.variants import get

_WORDS = [f"word{number}" for number in range(40)]
_TASK = dict(add_bos_token=False, tokens_per_sample=64, max_target_positions=64)
_SIZES = dict(embed_dim=16, ffn_embed_dim=32, attention_heads=2, layers=2)


class _Stack(TokenKind):
    arch, host, padding = "", HOST, 1
    takes_content, time_first = False, True

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
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

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        found = super().places(model, samples)
        spacing = getattr(self.stack(model), "spacing", 1.0)  # α in the source
        return found._replace(positions=found.positions * spacing)


class _Encoder(_Stack):
    name, arch = "fairseq's cape_transformer, its encoder", "cape_transformer"
    pads_left = True

    def stack(self, model: Any) -> Any:
        return model.encoder

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        lengths = torch.tensor([*map(len, samples)])
        out = model.encoder(self.batch(samples), lengths)["encoder_out"][0].transpose(0, 1)
        return self.unpadded(out, samples)


class _Decoder(_Stack):
    name, arch, causal = "fairseq's cape_transformer_lm", "cape_transformer_lm", True

    def stack(self, model: Any) -> Any:
        return model.decoder

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        out, _ = model.decoder(self.batch(samples), features_only=True)
        return self.unpadded(out, samples)

    def ways(self, model: Any, samples: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
        found = []
        for one in samples:  # by itself: in fairseq's search no row is padded
            named: dict[str, Any] = dict(incremental_state={}, features_only=True)
            so_far = [one[None, :count] for count in range(1, len(one) + 1)]
            found.append(torch.cat([model.decoder(x, **named)[0][0] for x in so_far]))
        yield "in steps with fairseq's cache", found


KINDS = (_Encoder(), _Decoder())
