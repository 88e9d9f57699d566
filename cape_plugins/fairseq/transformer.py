"""The models ``cape_transformer`` and ``cape_transformer_lm``: fairseq's, with other positions.

The encoder draws Δ and λ for each sentence pair and stores them in its output. That output reaches
the decoder however the two are wrapped or called. A language model's decoder draws Δ and λ itself.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
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
from torch import Tensor, nn

from cape_plugins.augment import Draw
from cape_plugins.fairseq import weights
from cape_plugins.fairseq.errors import one_line
from cape_plugins.fairseq.layers import (
    POSITIONS,
    FairseqCapeDecoderLayer,
    FairseqCapeEncoderLayer,
    StackPositions,
    during,
    wrap,
)
from cape_plugins.fairseq.options import (
    Chosen,
    FairseqCapeConfig,
    FairseqCapeLanguageModelConfig,
    as_config,
    check_options,
    choose,
    plain_options,
)
from cape_plugins.fairseq.positions import positions_in_batch, prepend_bos
from cape_plugins.fairseq.relies import RELIES
from cape_plugins.fairseq.source_scale import count_source_scale
from cape_plugins.fairseq.start import check_start, finetunes, settle
from cape_plugins.mark import compare_first, variant_of
from cape_plugins.positions import Positions

# key of the encoder's output: [shift (B, 1), scale (B,)] in training with cape, else absent
DRAW = "cape_draw"


class EmbedPositions(nn.Module):
    """Replaces fairseq's table of positions: returns what :data:`POSITIONS` holds."""

    max_positions = math.inf  # fairseq takes the less of this and its option

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """(B or 1, N, dim), for tokens (B, N); RuntimeError outside of its forward."""
        stack = POSITIONS.get()
        if stack is None or stack.embedding is None:
            raise RuntimeError("positions are made in forward: call the encoder or the decoder")
        return stack.embedding


class MakesPositions:
    """Mixed into fairseq's encoder and decoder: makes positions once in a forward.

    Args:
        cfg: the model's options.
        chosen: those about positions.
        stack: the encoder's or the decoder's part of the options.
        sets: options of variants that the encoder or the decoder sets itself.
        spacing: between neighbouring tokens.
        causal: see :class:`cape_plugins.Positions`; the masks are fairseq's.
        remembers: what else checkpoints keep, see :class:`cape_plugins.Positions`.
        others, named: fairseq's arguments.
    """

    def __init__(
        self: Any,
        cfg: Any,
        *others: Any,
        chosen: Chosen,
        stack: Any,
        sets: Mapping[str, Any],
        spacing: float = 1.0,
        causal: bool = False,
        remembers: Mapping[str, float] | None = None,
        **named: Any,
    ) -> None:
        positions = chosen.positions(
            sets,
            dim=stack.embed_dim,
            heads=stack.attention_heads,
            layers=stack.layers,
            spacing=spacing,
            causal=causal,
            remembers=remembers or {},
        )
        # one for each layer, in the order in which fairseq builds them: it does not number layers
        self.to_install = positions.hand_over()
        layers_of_ours = [one is not None for one in self.to_install]
        super().__init__(cfg, *others, **named)  # type: ignore[call-arg]
        self.positions = positions
        self.attends, self.attends_in_all = any(layers_of_ours), all(layers_of_ours)
        # ε where neighbours are less than a token apart, so that they cannot change places; farther
        # apart it stays, as section 3.3 draws the source's and the target's alike
        local = positions.options.get("max_local_shift")
        self.max_local_shift = None if local is None or spacing >= 1.0 else local * spacing
        if positions.added is not None:
            self.embed_positions = EmbedPositions()

    def make_positions(
        self: Any,
        positions: Tensor,
        batch: int,
        mask: Tensor | None = None,
        draw: Draw | None = None,
        keys: Tensor | None = None,
        past: int = 0,
        draws: bool = True,
    ) -> tuple[StackPositions, Draw | None]:
        """What fairseq adds and what self-attention gets, and the draw of Δ and λ.

        Args:
            positions: (B or 1, N), NaN at padding.
            batch: B.
            mask: bool (B or 1, 1 or N, N), True where self-attention sees a key.
            draw: Δ and λ. Default: drawn here if the variant needs them.
            keys: (B or 1, keys), positions of the keys where they are others.
            past: tokens whose keys are cached.
            draws: whether training draws here. If not, positions are those of evaluation, moved by
                Δ and λ where ``draw`` has them.
        """
        if draws and draw is None:
            draw = self.positions.draw(batch, positions.device)
        if self.training and not draws and draw is not None:
            positions, keys = (_moved(self.positions, x, draw) for x in (positions, keys))
        embedding, given = self.positions(
            None,
            positions,
            mask,
            draw,
            keys=positions if keys is None else keys,  # so that the mask stays as it is
            past=past,
            draws=draws,
            max_local_shift=self.max_local_shift,
            # fairseq's buffer `version` has the model's dtype in half precision, however it is cast
            dtype=self.version.dtype,
        )
        return StackPositions(embedding, given), draw


def _moved(made: Positions, where: Any, draw: Draw) -> Any:
    """Positions (B or 1, N) moved by Δ and λ alone, (B, N); None stays."""
    if where is None:
        return None
    batch = draw.scale.shape[0]
    return made.augment(where, batch, draw, max_local_shift=0.0)[..., 0]


class FairseqCapeEncoder(MakesPositions, TransformerEncoderBase):
    """fairseq's encoder; draws Δ and λ, and begins the source with BOS where that applies."""

    layer_class: type[FairseqCapeEncoderLayer] = FairseqCapeEncoderLayer

    def __init__(self, cfg: TransformerConfig, *others: Any) -> None:
        chosen = choose(vars(cfg))
        self.spacing, self.source_bos = chosen.source_scale or 1.0, chosen.source_bos
        remembers: dict[str, float] = {"source_bos": self.source_bos}
        if chosen.aligns_source:
            remembers["source_scale"] = self.spacing
        super().__init__(
            cfg,
            *others,
            chosen=chosen,
            stack=cfg.encoder,
            sets={"abspos_context": cfg.max_source_positions + int(self.source_bos)},
            spacing=self.spacing,
            remembers=remembers,
        )

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own."""
        return wrap(self.layer_class(cfg, positional=self.to_install.pop(0)), cfg)

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
        positions, mask = positions_in_batch(src_tokens, self.padding_idx, self.spacing)
        stack, draw = self.make_positions(positions, len(src_tokens), mask, draws=draws)
        with during(POSITIONS, stack):
            out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
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

    layer_class: type[FairseqCapeDecoderLayer] = FairseqCapeDecoderLayer

    def __init__(self, cfg: TransformerConfig, *others: Any, **named: Any) -> None:
        chosen = choose(vars(cfg))
        sets = {"abspos_context": cfg.max_target_positions}
        stack = cfg.decoder
        super().__init__(cfg, *others, chosen=chosen, stack=stack, sets=sets, causal=True, **named)
        self.source_bos = chosen.source_bos

    def build_decoder_layer(self, cfg: TransformerConfig, *others: Any) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own."""
        return wrap(self.layer_class(cfg, *others, positional=self.to_install.pop(0)), cfg)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor | None:
        """fairseq's mask, made at each call; fairseq's cached one is not safe with two threads.

        None where all layers get a mask with their positions.
        """
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
        (batch, steps), device = prev_output_tokens.shape, prev_output_tokens.device
        mask, keys, past = None, None, 0
        if incremental_state is None:
            positions, mask = positions_in_batch(prev_output_tokens, self.padding_idx)
            if self.attends and not full_context_alignment:
                mask = mask.expand(-1, steps, -1).tril()
        else:  # all rows are equally long: finished ones hold padding, which counts
            keys = torch.arange(steps, dtype=torch.float32, device=device)[None]
            positions, past = keys[:, -1:], steps - 1  # a step's
        shared = encoder_out.get(DRAW) if encoder_out is not None else None
        draw = Draw(*shared) if shared else None
        draws = incremental_state is None
        stack, _ = self.make_positions(positions, batch, mask, draw, keys, past, draws)
        with during(POSITIONS, stack):
            features, extra = super().extract_features(
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
        encoder_class, decoder_class: what the model is made of.
        chosen_pos: ``--pos``.
        finetunes: whether the training takes the weights alone of the checkpoint that it starts
            from, which may be of another ``--pos``.
    """

    config: type[FairseqDataclass]
    chosen_pos = ""
    finetunes = False
    encoder_class: type[FairseqCapeEncoder] = FairseqCapeEncoder
    decoder_class: type[FairseqCapeDecoder] = FairseqCapeDecoder

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Chosen:
        """:func:`cape_plugins.fairseq.options.check_options`."""
        return check_options(options)

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
        cfg = as_config(cfg)
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
        return cls.encoder_class(cfg, *others)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, *others: Any) -> FairseqCapeDecoder:
        """Our decoder."""
        return cls.decoder_class(cfg, *others, cfg.no_cross_attention)


class FairseqCapeLanguageModel(FairseqCapeModel, TransformerLanguageModel):
    """fairseq's ``transformer_lm`` with ``--pos``; all else is shared.

    Our decoder replaces the one that fairseq builds together with embeddings of several kinds.
    """

    config = FairseqCapeLanguageModelConfig

    def __init__(self, decoder: TransformerDecoderBase) -> None:
        ours = decoder.cfg, decoder.dictionary, decoder.embed_tokens
        super().__init__(self.decoder_class(*ours, no_encoder_attn=True))
