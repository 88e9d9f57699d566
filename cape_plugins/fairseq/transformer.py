"""The models ``cape_transformer`` and ``cape_transformer_lm``: fairseq's, with other positions.

The encoder draws Δ and λ for each sentence pair and stores them in its output. That output reaches
the decoder however the two are wrapped or called. A language model's decoder draws Δ and λ itself.
"""

from argparse import Namespace
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.models.transformer_lm import TransformerLanguageModel
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import Tensor, nn

from cape_plugins.augment import Draw
from cape_plugins.fairseq import weights
from cape_plugins.fairseq.errors import one_line
from cape_plugins.fairseq.layers import (
    FairseqCapeDecoderLayer,
    FairseqCapeEncoderLayer,
    Handed,
    wrap,
)
from cape_plugins.fairseq.options import (
    FairseqCapeConfig,
    FairseqCapeLanguageModelConfig,
    check_options,
    choose,
    plain_options,
)
from cape_plugins.fairseq.positions import positions_in_batch, prepend_bos
from cape_plugins.fairseq.relies import RELIES
from cape_plugins.fairseq.source_scale import count_source_scale
from cape_plugins.fairseq.start import check_start, finetunes, settle
from cape_plugins.host import with_class
from cape_plugins.mark import compare_first, variant_of
from cape_plugins.positions import Positions

# key of the encoder's output: [shift (B, 1), scale (B,)] in training with cape, else absent
DRAW = "cape_draw"


class MakesPositions:
    """Mixed into fairseq's encoder and decoder: makes positions once in a forward.

    Args:
        cfg: the model's options.
        positions: the core's module, for this side.
        layer_class: of its layers.
        others, named: fairseq's arguments.
    """

    def __init__(
        self: Any, cfg: Any, *others: Any, positions: Positions, layer_class: Any, **named: Any
    ) -> None:
        # one for each layer, in the order in which fairseq builds them: it does not number layers
        self.to_install, self.layer_class = positions.hand_over(), layer_class
        attend = [one is not None for one in self.to_install]
        self.attends, self.attends_in_all = any(attend), all(attend)
        super().__init__(cfg, *others, **named)  # type: ignore[call-arg]
        self.positions = positions

    def build_layer(self: Any, cfg: TransformerConfig, *others: Any) -> nn.Module:
        """The next layer, wrapped as fairseq wraps its own."""
        return wrap(self.layer_class(cfg, *others, positional=self.to_install.pop(0)), cfg)

    def with_positions(
        self: Any,
        where: Tensor,
        mask: Tensor | None,
        draw: Draw | None,
        keys: Tensor | None = None,
        **how: Any,
    ) -> Any:
        """A copy of itself, which is ``self`` of fairseq's forward once: its layers have positions.

        Args:
            where: positions of the tokens, (B or 1, N), NaN at padding.
            mask: bool (B or 1, 1 or N, N), True where self-attention sees a key.
            draw: Δ and λ.
            keys: (B or 1, keys), positions of the keys where they are others.
            how: more for :class:`cape_plugins.Positions`.
        """
        keys = where if keys is None else keys  # they are given, so that the mask stays as it is
        # fairseq's buffer `version` has the model's dtype in half precision, however it is cast
        how |= dict(keys=keys, dtype=self.version.dtype)
        embedding, given = self.positions(None, where, mask, draw, **how)
        instead: dict[str, Any] = dict(layers=Handed(self.layers, given))
        if embedding is not None:
            instead["embed_positions"] = lambda *_, **__: embedding  # what fairseq adds
        return with_class(self, type(self), **instead)


class FairseqCapeEncoder(MakesPositions, TransformerEncoderBase):
    """fairseq's encoder; draws Δ and λ, and begins the source with BOS where that applies."""

    def __init__(
        self, cfg: TransformerConfig, *others: Any, layer_class: Any = FairseqCapeEncoderLayer
    ) -> None:
        chosen = choose(vars(cfg))
        self.spacing, self.source_bos = chosen.source_scale or 1.0, chosen.source_bos
        remembers = {"source_bos": float(self.source_bos)}
        if chosen.aligns_source:
            remembers["source_scale"] = self.spacing
        longest = cfg.max_source_positions + self.source_bos
        positions = chosen.positions(
            cfg.encoder, longest, spacing=self.spacing, remembers=remembers
        )
        super().__init__(cfg, *others, positions=positions, layer_class=layer_class)
        # ε where neighbours are less than a token apart, so that they cannot change places; farther
        # apart it stays, as section 3.3 draws the source's and the target's alike
        local = positions.options.get("max_local_shift")
        self.max_local_shift = None if local is None else local * min(self.spacing, 1.0)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer of ours."""
        return self.build_layer(cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        draws: bool = True,
    ) -> dict[str, list[Tensor]]:
        """As fairseq's; the output's length counts an inserted BOS (one more column).

        ``draws`` is whether training draws Δ, ε and λ.
        """
        if self.source_bos:
            src_tokens, inserted = prepend_bos(
                src_tokens, bos=self.dictionary.bos(), padding_idx=self.padding_idx
            )
            if token_embeddings is not None:
                token_embeddings = torch.where(
                    inserted[..., None],
                    self.embed_tokens.weight[self.dictionary.bos()],
                    nn.functional.pad(token_embeddings, (0, 0, 1, 0)),
                )
        where, mask = positions_in_batch(src_tokens, self.padding_idx, self.spacing)
        draw = self.positions.draw(len(where), where.device) if draws else None
        how: dict[str, Any] = dict(draws=draws, max_local_shift=self.max_local_shift)
        now = self.with_positions(where, mask, draw, **how)
        out: dict[str, list[Tensor]] = super(FairseqCapeEncoder, now).forward(
            src_tokens, src_lengths, return_all_hiddens, token_embeddings
        )
        if draw is not None:
            out[DRAW] = list(draw)
        return out

    def forward_torchscript(self, net_input: dict[str, Tensor]) -> Any:
        """As fairseq's, by which its generator encodes: nothing is drawn, in training neither.

        A generator keeps keys, so its tokens are those of evaluation.
        """
        return super().forward_torchscript({**net_input, "draws": False})

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> Any:
        """As fairseq's, which drops keys it does not know; sentences keep their Δ and λ."""
        out = super().reorder_encoder_out(encoder_out, new_order)
        if DRAW in encoder_out:
            out[DRAW] = [drawn.index_select(0, new_order) for drawn in encoder_out[DRAW]]
        return out


class FairseqCapeDecoder(MakesPositions, TransformerDecoderBase):
    """fairseq's decoder; uses the encoder's draw of Δ and λ, and draws itself without one."""

    def __init__(
        self,
        cfg: TransformerConfig,
        *others: Any,
        layer_class: Any = FairseqCapeDecoderLayer,
        **named: Any,
    ) -> None:
        chosen = choose(vars(cfg))
        positions = chosen.positions(cfg.decoder, cfg.max_target_positions, causal=True)
        super().__init__(cfg, *others, positions=positions, layer_class=layer_class, **named)
        self.source_bos = chosen.source_bos

    def build_decoder_layer(self, cfg: TransformerConfig, *others: Any) -> nn.Module:
        """A layer of ours."""
        return self.build_layer(cfg, *others)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor | None:
        """fairseq's mask, made at each call; None where all layers get one with their positions."""
        if self.attends_in_all:
            return None
        return tensor.new_full((tensor.size(0), tensor.size(0)), -torch.inf).triu(1)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's; ``attn`` leaves out the column of BOS, so that it fits the source.

        A step (``incremental_state``) draws nothing, in training neither: earlier keys are kept.
        """
        steps, device = prev_output_tokens.shape[1], prev_output_tokens.device
        shared = None if encoder_out is None else encoder_out.get(DRAW)
        draw = Draw(*shared) if shared else None
        if incremental_state is None:
            where, mask = positions_in_batch(prev_output_tokens, self.padding_idx)
            if self.attends and not full_context_alignment:
                mask = mask.expand(-1, steps, -1).tril()
            now = self.with_positions(where, mask, draw)
        else:  # all rows are equally long: finished ones hold padding, which counts
            keys = torch.arange(steps, dtype=torch.float32, device=device)[None]
            how = dict(past=steps - 1, draws=draw is not None, max_local_shift=0.0)
            now = self.with_positions(keys[:, -1:], None, draw, keys, **how)
        features, extra = super(FairseqCapeDecoder, now).extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            *others,
            **named,
        )
        if self.source_bos and encoder_out is not None:
            extra["attn"] = [None if a is None else a[..., 1:] for a in extra["attn"]]
        return features, extra


class FairseqCapeModel:
    """Mixed into fairseq's models: adds ``--pos`` and the options that go with it.

    Attributes:
        config: the options, a dataclass.
        encoder_layer, decoder_layer: classes of its layers.
        chosen_pos: ``--pos``.
        finetunes: whether the training takes the weights alone of the checkpoint that it starts
            from, which may be of another ``--pos``.
    """

    config: type[FairseqDataclass]
    chosen_pos = ""
    finetunes = False
    encoder_layer = FairseqCapeEncoderLayer
    decoder_layer = FairseqCapeDecoderLayer
    check_options = staticmethod(check_options)

    @classmethod
    def initialise(cls, model: nn.Module, cfg: Any, task: Any) -> None:
        """Nothing, here: what else is done when a model has been built."""

    @classmethod
    @one_line()
    def build_model(cls, cfg: Any, task: Any) -> nn.Module:
        """Build a model; α is stored in the options, for checkpoints.

        Args:
            cfg: the options, as OmegaConf's DictConfig or as the dataclass.
            task: gives the dictionaries and, if needed, the training set.

        Raises:
            ValueError: an option is out of range, or the training set is needed and cannot be read.
            ImportError: this fairseq is another than our models rely on.
        """
        RELIES.check()
        if not OmegaConf.is_config(cfg):
            cfg = OmegaConf.create({"model": OmegaConf.structured(cfg)}).model
        chosen = cls.check_options(plain_options(cfg))
        # fairseq-train has checked it already. It is left out where a model is built to generate:
        # its training's folder may hold another training by now.
        if HydraConfig.initialized() and HydraConfig.get().job.name == "hydra_train":
            check_start(chosen.pos, cfg._get_parent().checkpoint)
        if "source_scale" in cfg and chosen.aligns_source and chosen.source_scale == 0:
            settle(cfg, "source_scale", lambda split: count_source_scale(task, split))
        # so that fairseq builds no positions of its own
        options = {**plain_options(cfg), "no_token_positional_embeddings": True}
        config = TransformerConfig.from_namespace(Namespace(**options))
        model = super().build_model(config, task)  # type: ignore[misc]
        model.chosen_pos, model.finetunes = chosen.pos, finetunes(cfg)
        compare_first(model)
        cls.initialise(model, cfg, task)
        return model

    @one_line()
    def load_state_dict(
        self: Any, state_dict: Any, strict: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        """As fairseq's; weights of fairseq's own Transformer are completed.

        So are those of another variant, where ``--finetune-from-model`` takes them.

        Raises:
            ValueError: the weights are of another variant, or of a Transformer of other sizes.
        """
        trained = variant_of(state_dict)
        if strict and (trained is None or (self.finetunes and trained != self.chosen_pos)):
            state_dict = weights.complete(state_dict, self)
        return super().load_state_dict(state_dict, strict, *args, **kwargs)  # type: ignore[misc]


class FairseqCapeTransformer(FairseqCapeModel, TransformerModelBase):
    """fairseq's Transformer with ``--pos``; all else is shared."""

    config = FairseqCapeConfig
    add_args: Any = classmethod(BaseFairseqModel.add_args.__func__)  # its parent's has no --pos

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, *others: Any) -> FairseqCapeEncoder:
        """Our encoder."""
        return FairseqCapeEncoder(cfg, *others, layer_class=cls.encoder_layer)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, *others: Any) -> FairseqCapeDecoder:
        """Our decoder."""
        cross = cfg.no_cross_attention
        return FairseqCapeDecoder(cfg, *others, cross, layer_class=cls.decoder_layer)


class FairseqCapeLanguageModel(FairseqCapeModel, TransformerLanguageModel):
    """fairseq's ``transformer_lm`` with ``--pos``; all else is shared.

    Our decoder replaces the one that fairseq builds together with embeddings of several kinds.
    """

    config = FairseqCapeLanguageModelConfig

    def __init__(self, decoder: TransformerDecoderBase) -> None:
        ours = decoder.cfg, decoder.dictionary, decoder.embed_tokens, True  # it has no source
        super().__init__(FairseqCapeDecoder(*ours, layer_class=self.decoder_layer))
