"""The models ``cape_transformer`` and ``cape_transformer_lm``: fairseq's, with other positions.

The encoder draws Δ and λ for each sentence pair and stores them in its output. That output reaches
the decoder however the two are wrapped or called. A language model's decoder draws Δ and λ itself.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
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

from cape_plugins.attention import Hidden
from cape_plugins.augment import Draw, Identity
from cape_plugins.embedding import PositionalEmbedding
from cape_plugins.fairseq import checks, weights
from cape_plugins.fairseq.config import (
    FairseqCapeConfig,
    FairseqCapeLanguageModelConfig,
    TokenSettings,
    as_config,
    plain_options,
)
from cape_plugins.fairseq.layers import (
    STACK_POSITIONS,
    FairseqCapeDecoderLayer,
    FairseqCapeEncoderLayer,
    StackPositions,
    during,
    wrap,
)
from cape_plugins.fairseq.positions import hidden_keys, positions_in_batch, prepend_bos
from cape_plugins.fairseq.source_scale import count_source_scale
from cape_plugins.fairseq.start import ANOTHER_CHECKPOINT, check_start, settle
from cape_plugins.mark import VariantMark
from cape_plugins.ranks import generator_of_rank
from cape_plugins.variants import prepare

# key of the encoder's output: [shift (B, 1), scale (B,)] in training with cape, else absent
DRAW = "cape_draw"
# key of the variant's mark in a checkpoint
MARK = "decoder.variant._extra_state"


class EmbedPositions(nn.Module):
    """Replaces fairseq's table of positions: returns what :data:`STACK_POSITIONS` holds."""

    max_positions = math.inf  # fairseq takes the less of this and its option

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """(B or 1, N, dim), for tokens (B, N); RuntimeError outside of its forward."""
        stack = STACK_POSITIONS.get()
        if stack is None or stack.embedding is None:
            raise RuntimeError("positions are made in forward: call the encoder or the decoder")
        return stack.embedding


class MakesPositions:
    """Mixed into fairseq's encoder and decoder: makes positions once in a forward.

    ``sizes`` are the encoder's or the decoder's part of the options. ``source_bos`` is whether the
    source begins with BOS, as the target begins with EOS. By default it is on for cape only, where
    source and target positions share one scale (paper, section 3.3).
    """

    position: PositionalEmbedding  # subclasses make it

    def __init__(self: Any, cfg: Any, sizes: Any, *others: Any, **named: Any) -> None:
        self.settings = TokenSettings.of(vars(cfg))
        source_bos = getattr(cfg, "source_bos", "false")  # a language model has no source
        auto = self.settings.takes("source_scale")
        self.source_bos = {"auto": auto, "true": True, "false": False}[source_bos]
        self.attention_settings = self.settings.attention_settings(
            sizes.embed_dim, sizes.attention_heads
        )
        # one for each layer, in the order in which fairseq builds them: it does not number layers
        self.to_install = self.settings.attention_layers(sizes.layers, self.attention_settings)
        self.hides = all(layer is not None and layer.hides for layer in self.to_install)
        super().__init__(cfg, *others, **named)  # type: ignore[call-arg]
        if self.settings.variant.adds != "nothing":
            self.embed_positions = EmbedPositions()

    def stack_positions(
        self: Any,
        positions: Tensor,
        batch: int,
        hidden: Hidden = None,
        draw: Draw | None = None,
        last: bool = False,
    ) -> StackPositions:
        """Augment positions (B or 1, N), NaN at padding, and prepare embedding and attention.

        ``hidden`` makes a bool (B or 1, 1 or N, N), True where self-attention must not see a key.
        Without ``draw``, Δ and λ are drawn here if the variant needs them. With ``last`` only the
        last token gets an embedding.
        """
        device, draws = positions.device, self.settings.variant.augment is not Identity
        generator = generator_of_rank(device) if self.training and draws else None
        draw = self.position.draw(batch, device, generator) if draw is None else draw
        moved = self.position.augment(positions, batch, draw, generator)
        # fairseq's buffer `version` has the model's dtype in half precision, however it is cast
        dtype = self.version.dtype
        embedding = None
        if not self.position.adds_nothing:
            embedding = self.position.embedding(moved[:, -1:] if last else moved, dtype).to(dtype)
        prepared = prepare(
            self.settings.pos, moved, self.attention_settings, hidden=hidden, dtype=dtype
        )
        return StackPositions(draw, embedding, prepared)


class FairseqCapeEncoder(MakesPositions, TransformerEncoderBase):
    """fairseq's encoder; draws Δ and λ, and begins the source with BOS where that applies."""

    layer_class: type[FairseqCapeEncoderLayer] = FairseqCapeEncoderLayer

    def __init__(self, cfg: TransformerConfig, *others: Any) -> None:
        super().__init__(cfg, cfg.encoder, *others)
        self.spacing = cfg.source_scale if self.settings.takes("source_scale") else 1.0
        self.position = self.settings.embedding(
            self.embed_tokens.embedding_dim,
            overflow="error",
            max_length=cfg.max_source_positions + int(self.source_bos),
            # scaled too: neighbours less than a token apart could change places otherwise
            max_local_shift=self.settings.max_local_shift * self.spacing,
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
    ) -> dict[str, list[Tensor]]:
        """As fairseq's; the output's length counts an inserted BOS (one more column)."""
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
        positions = positions_in_batch(src_tokens, self.padding_idx, self.spacing)
        stack = self.stack_positions(positions, len(src_tokens), partial(hidden_keys, positions))
        with during(STACK_POSITIONS, stack):
            out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if stack.draw is not None:
            out[DRAW] = list(stack.draw)
        return out

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
        super().__init__(cfg, cfg.decoder, *others, **named)
        # not spread: decoding does not know how many tokens there will be
        self.position = self.settings.embedding(
            self.embed_dim, overflow="error", max_length=cfg.max_target_positions, spread=False
        )
        kept = {**vars(self.settings), "source_scale": getattr(cfg, "source_scale", None)}
        self.variant = VariantMark(cfg.pos, kept, checks.flag, advice=ANOTHER_CHECKPOINT)

    def build_decoder_layer(self, cfg: TransformerConfig, *others: Any) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own."""
        return wrap(self.layer_class(cfg, *others, positional=self.to_install.pop(0)), cfg)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor | None:
        """fairseq's mask, made at each call; fairseq's cached one is not safe with two threads.

        None where prepared positions hide later tokens.
        """
        if self.hides:
            return None
        return tensor.new_full((len(tensor), len(tensor)), -torch.inf).triu(1)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's; ``attn`` leaves out the column of BOS, so that it fits the source."""
        batch, steps = prev_output_tokens.shape
        if incremental_state is None:
            positions = positions_in_batch(prev_output_tokens, self.padding_idx)
            hidden = partial(hidden_keys, positions, future=not full_context_alignment)
        else:  # all rows are equally long: finished ones hold padding, which counts
            device = prev_output_tokens.device
            positions = torch.arange(steps, dtype=torch.float32, device=device)[None]
            hidden = None
        shared = encoder_out.get(DRAW) if encoder_out is not None else None
        draw = Draw(*shared) if shared else None
        stack = self.stack_positions(
            positions, batch, hidden, draw, last=incremental_state is not None
        )
        with during(STACK_POSITIONS, stack):
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
    """

    config: type[FairseqDataclass]
    encoder_class: type[FairseqCapeEncoder] = FairseqCapeEncoder
    decoder_class: type[FairseqCapeDecoder] = FairseqCapeDecoder

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> TokenSettings:
        """:func:`cape_plugins.fairseq.checks.check_options` with the model's defaults."""
        return checks.check_options(options, cls.config())

    @classmethod
    @checks.one_line()
    def check_training(cls, options: Mapping[str, Any], checkpoint: Any) -> None:
        """Check a training before it reads data.

        Args:
            options: the model's, as :meth:`check_options` takes them.
            checkpoint: has fairseq's checkpoint options as attributes.

        Raises:
            ValueError: an option is wrong, or the training must not start from its checkpoint.
        """
        check_start(cls.check_options(options).pos, checkpoint)

    @classmethod
    @checks.one_line()
    def build_model(cls, cfg: Any, task: Any) -> nn.Module:
        """Build a model; α is stored in the options, for checkpoints.

        Args:
            cfg: the options, as OmegaConf's DictConfig or as the dataclass.
            task: gives the dictionaries and, if needed, the training set.

        Raises:
            ValueError: an option is out of range, or the training set is needed and cannot be read.
        """
        cfg = as_config(cfg)
        options = plain_options(cfg)
        # fairseq-hydra-train has no earlier place for this. It is left out where a model is built
        # to generate: its training's folder may hold another training by now.
        if HydraConfig.initialized() and HydraConfig.get().job.name == "hydra_train":
            cls.check_training(options, cfg._get_parent().checkpoint)
        settings = cls.check_options(options)
        if options.get("source_scale") == 0 and settings.takes("source_scale"):
            settle(cfg, "source_scale", lambda split: count_source_scale(task, split))
        # so that fairseq builds no positions of its own
        options = {**plain_options(cfg), "no_token_positional_embeddings": True}
        config = TransformerConfig.from_namespace(Namespace(**options))
        return super().build_model(config, task)  # type: ignore[misc]

    @checks.one_line()
    def load_state_dict(
        self: Any, state_dict: Any, strict: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        """As fairseq's; weights of fairseq's own Transformer are completed.

        Raises:
            ValueError: the weights are of another variant, or of other sizes.
        """
        if strict and MARK not in state_dict:
            state_dict = weights.complete(state_dict, self)
        weights.check_sizes(state_dict, self)
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
