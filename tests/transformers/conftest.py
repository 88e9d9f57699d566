"""Tiny models of transformers with our positions."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]

#: two heads of keys for four of queries
SIZES = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    initializer_range=0.15,  # so large that positions matter
)
ENCODER = dict(mask_token_id=3)


@pytest.fixture(scope="session")
def sizes() -> dict[str, Any]:
    """Of every model here."""
    return SIZES


@pytest.fixture(scope="session")
def create() -> Callable[..., torch.nn.Module]:
    """variant, type, auto class, options → a model in evaluation, of the same weights each time."""
    import transformers

    import cape_plugins.transformers  # noqa: F401 - registers, also where autoload is switched off

    def make(
        pos="cape_rope", kind="cape_llama", auto="AutoModelForCausalLM", *, attn=None, **options
    ):
        torch.manual_seed(0)
        own = ENCODER if "bert" in kind else {}
        own = own | (dict(relpos_context=5) if str(pos).startswith("relpos") else {})
        own = own | ({} if pos is None or not kind.startswith("cape") else dict(pos=pos))
        config = transformers.AutoConfig.for_model(kind, **SIZES | own | options)
        named = {} if attn is None else dict(attn_implementation=attn)
        return getattr(transformers, auto).from_config(config, **named).eval()

    return make


@pytest.fixture(scope="session")
def tokens() -> torch.Tensor:
    """(2, 13)"""
    return torch.randint(4, 97, (2, 13), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def left_padded(tokens) -> dict[str, torch.Tensor]:
    """The same, where the first text has 4 tokens of padding before it."""
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    where = (mask.cumsum(1) - 1).clamp(min=0)
    return dict(input_ids=tokens * mask, attention_mask=mask, position_ids=where)
