"""cape_llama: steps with a cache, padding, packing, generation; rope is transformers' own Llama."""

import copy

import pytest
import torch
import transformers
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StaticCache,
)

ADDING = ["relpos", "alibi", "fire"]  # to the scores
CLOSE = dict(rtol=1e-4, atol=2e-5)
CACHES = {
    "dynamic": lambda model: DynamicCache(config=model.config),
    "dynamic without configuration": lambda model: DynamicCache(),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=20),
}

pytestmark = pytest.mark.filterwarnings("ignore")


def in_steps(model, cache, input_ids, attention_mask=None, position_ids=None):
    """The logits of a prompt of 7 tokens, two steps, and 4 tokens at once."""
    found = []
    for start, stop in [(0, 7), (7, 8), (8, 9), (9, 13)]:
        named = dict(past_key_values=cache, use_cache=True)
        if attention_mask is not None:
            named |= dict(attention_mask=attention_mask[:, :stop])
        if position_ids is not None:
            named |= dict(position_ids=position_ids[:, start:stop])
        found.append(model(input_ids[:, start:stop], **named).logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("pos", ["cape", "cape_rope", *ADDING])
@torch.no_grad()
def test_steps_with_a_cache_are_the_whole_forward(create, tokens, left_padded, pos):
    """With grouped keys, given positions and any cache; CHECKS have every variant without."""
    model = create(pos)
    whole = model(tokens).logits
    padded = model(**left_padded).logits
    seen = left_padded["attention_mask"].bool()
    for make in CACHES.values():
        torch.testing.assert_close(in_steps(model, make(model), tokens), whole, **CLOSE)
        steps = in_steps(model, make(model), **left_padded)
        torch.testing.assert_close(steps[seen], padded[seen], **CLOSE)


@pytest.mark.parametrize("pos", ADDING)
@torch.no_grad()
def test_eager_is_sdpa_and_has_weights(create, left_padded, pos):
    sdpa, eager = (create(pos, attn=attn) for attn in ("sdpa", "eager"))
    seen = left_padded["attention_mask"].bool()
    found = eager(**left_padded, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(found.logits[seen], sdpa(**left_padded).logits[seen], **CLOSE)
    assert [one.shape for one in found.attentions] == [(2, 4, 13, 13)] * 2
    assert len(found.hidden_states) == 3


@pytest.mark.parametrize("options", [{}, dict(head_dim=16, rope_theta=500.0)])
def test_rope_is_transformers_llama(create, tokens, left_padded, sizes, options):
    ours = create("rope", **options)
    stock = LlamaForCausalLM(LlamaConfig(**sizes, **options)).eval()
    unknown = stock.load_state_dict(ours.state_dict(), strict=False)
    assert not unknown.missing_keys
    assert all(".mark." in key for key in unknown.unexpected_keys)
    for given in (dict(input_ids=tokens), left_padded):
        found, expected = ours(**given).logits, stock(**given).logits
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("pos", ["cape_rope", "relpos", "alibi"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_is_generation_without(create, left_padded, pos, beams):
    model = create(pos)
    given = {n: one for n, one in left_padded.items() if n != "position_ids"}
    given |= dict(max_new_tokens=6, do_sample=False, num_beams=beams)
    expected = model.generate(**given, use_cache=False)
    assert torch.equal(model.generate(**given), expected)
    if beams == 1:
        assert torch.equal(model.generate(**given, cache_implementation="static"), expected)


@pytest.mark.parametrize("pos", ["cape_rope", "alibi", "cape_fire"])
def test_checkpointing_of_gradients_changes_nothing(create, tokens, pos):
    plain = create(pos).train()
    saving = copy.deepcopy(plain)
    saving.gradient_checkpointing_enable()
    for model in (plain, saving):
        torch.manual_seed(1)
        model(tokens, labels=tokens).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=name)


@pytest.mark.parametrize("pos", ["cape", "alibi"])
@torch.no_grad()
def test_half_precision_is_near(create, tokens, pos):
    model = create(pos)
    expected = model(tokens).logits
    found = model.to(torch.bfloat16)(tokens).logits
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.release  # tracing takes 10 s
@pytest.mark.parametrize("pos", ["cape_rope", "alibi"])
@torch.no_grad()
def test_compiled_it_is_the_same(create, tokens, pos):
    model = create(pos)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits, **CLOSE)


HEADS = "Model ForCausalLM ForSequenceClassification ForTokenClassification ForQuestionAnswering"
ENCODERS = "Model ForMaskedLM ForSequenceClassification ForTokenClassification"


@pytest.mark.parametrize(
    ("kind", "head"),
    [("Llama", head) for head in HEADS.split()] + [("EuroBert", head) for head in ENCODERS.split()],
)
def test_each_auto_class_makes_our_model(create, tokens, kind, head):
    auto = "AutoModel" if head == "Model" else f"AutoModel{head}"
    model = create("alibi", f"cape_{kind.lower()}", auto)
    assert type(model).__name__ == f"Cape{kind}{head}"
    assert any("variant_alibi" in key for key in model.state_dict())
    model(tokens)


def test_flex_attention_takes_queries_and_keys_but_nothing_added(create):
    with pytest.raises(ValueError, match="flex_attention"):
        create("alibi", attn="flex_attention")
    for auto in ("AutoModel", "AutoModelForCausalLM"):
        model = create("alibi", auto=auto)
        assert not any((model._supports_flex_attn, model._supports_flash_attn))
        assert not any((model.supports_tp_plan, model._tp_plan, model.config.base_model_tp_plan))
    with pytest.raises(ValueError, match="flex_attention"):
        model.set_attn_implementation("flex_attention")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="flex_attention"):
        model(torch.ones(1, 4, dtype=torch.long))
    assert create("cape_rope").supports_tp_plan
    assert create("cape_rope", attn="flex_attention")


@pytest.mark.release
@torch.no_grad()
def test_flex_attention_is_sdpa(create, tokens):
    sdpa, flex = (create("cape_rope", attn=attn) for attn in ("sdpa", "flex_attention"))
    torch.testing.assert_close(flex(tokens).logits, sdpa(tokens).logits, **CLOSE)


def test_a_learned_prefix_has_no_position(create, tokens):
    """PEFT's prefix tuning: a cache that was filled by no token."""
    for pos in ("cape_rope", "alibi"):
        model = create(pos)
        cache = DynamicCache(config=model.config)
        for layer in range(2):
            cache.update(torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8), layer)
        mask = torch.ones(2, 16, dtype=torch.long)
        assert model(tokens, past_key_values=cache, attention_mask=mask).logits.isfinite().all()


@torch.no_grad()
def test_positions_by_layer_are_those_of_smollm3(create, tokens):
    """Every fourth layer without a rotation, by the same weights; whole and in steps."""
    small = dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=8)
    small |= dict(
        num_attention_heads=4, num_key_value_heads=2, rope_theta=5e4, initializer_range=0.3
    )
    small |= dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    stock = SmolLM3ForCausalLM(SmolLM3Config(**small)).eval()
    assert stock.config.no_rope_layers == [1, 1, 1, 0] * 2
    config = transformers.AutoConfig.for_model("cape_llama", pos="rope", nopos_every=4, **small)
    ours = transformers.AutoModelForCausalLM.from_config(config).eval()
    known = {name for name in ours.state_dict() if ".mark." not in name}
    assert known == {*stock.state_dict()}
    ours.load_state_dict(stock.state_dict())
    expected = stock(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, rtol=1e-4, atol=1e-5)
    cache = DynamicCache(config=config)
    steps = [
        ours(tokens[:, start:stop], past_key_values=cache, use_cache=True).logits
        for start, stop in ((0, 7), (7, 8), (8, 13))
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=1e-4, atol=1e-5)
    everywhere = transformers.AutoConfig.for_model("cape_llama", pos="rope", **small)
    with_all = transformers.AutoModelForCausalLM.from_config(everywhere).eval()
    with_all.load_state_dict(stock.state_dict())
    assert not torch.allclose(with_all(tokens).logits, expected, atol=1e-3)
