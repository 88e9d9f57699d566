"""augment_positions: in training positions change per sample; in evaluation the model is stock."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from cape_plugins.transformers import augment_positions

TYPES = ["llama", "qwen3", "mistral", "gemma3_text", "modernbert", "eurobert", "gpt_neox", "phi3"]
SCALINGS = {
    "linear": dict(factor=2.0),
    "dynamic": dict(factor=4.0),
    "yarn": dict(factor=4.0, original_max_position_embeddings=16),
    "llama3": dict(
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    "longrope": dict(
        factor=4.0,
        short_factor=[1.0] * 4,
        long_factor=[2.0] * 4,
        original_max_position_embeddings=32,
    ),
}
AUGMENTING = dict(
    cape_rope=dict(max_global_scale=1.5),
    random_rope=dict(random_range=100.0),
    pose_rope=dict(pose_range=100.0),
)

pytestmark = pytest.mark.filterwarnings("ignore")


@torch.no_grad()
def serves(model, tokens, pos, **options):
    """Whether training changes each sample by itself, and evaluation and the state dict nothing."""
    stock = copy.deepcopy(model)
    augment_positions(model, pos, **options)
    longer = [torch.randint(4, 97, (2, n)) for n in (13, 40, 80, 120)]  # the models' length is 64
    for _ in range(2):
        assert list(model.state_dict()) == list(stock.state_dict())
        for one in longer:
            assert torch.equal(model.eval()(one)[0], stock(one)[0])
        same = tokens[:1].expand(2, -1)
        plain = stock.train()(same)[0]
        assert torch.equal(plain[0], plain[1])
        stock.eval()
        first, second = (model.train()(same)[0] for _ in range(2))
        assert not torch.allclose(first[0], first[1], atol=1e-5)
        assert not torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("kind", TYPES)
def test_models_with_one_rotary_table(create, tokens, kind):
    serves(create(None, kind, "AutoModel"), tokens, "pose_rope", pose_range=100.0)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_with_transformers_scalings(create, tokens, scaling):
    parameters = dict(rope_type=scaling, rope_theta=1e4, **SCALINGS[scaling])
    model = create(None, "llama", rope_parameters=parameters)
    serves(model, tokens, "pose_rope", pose_range=100.0)


@torch.no_grad()
def test_a_dynamic_scaling_forgets_the_positions_of_training(create, tokens):
    """It is of the tokens that it sees then: none of few, and theirs of 80, which are over 64."""
    model = create(None, "llama", rope_parameters=dict(rope_type="dynamic", factor=4.0))
    stock, longer = copy.deepcopy(model), torch.randint(4, 97, (2, 80))
    augment_positions(model, "random_rope", random_range=1000.0)
    model.train()(tokens)
    for one in (tokens, longer):
        assert torch.equal(model.eval()(one).logits, stock(one).logits)


def test_outside_a_forward_a_table_is_the_hosts(create, tokens):
    model = create(None, "llama").train()
    asked = torch.zeros(1, 5, 32), torch.arange(5)[None]
    expected, _ = model.model.rotary_emb(*asked)
    augment_positions(model, "pose_rope", pose_range=1000.0)
    model(tokens)
    assert torch.equal(model.model.rotary_emb(*asked)[0], expected)
    with pytest.raises(IndexError):
        model(tokens + 1000)
    assert torch.equal(model.model.rotary_emb(*asked)[0], expected)


def test_layers_of_two_kinds_have_the_same_positions(create, tokens):
    """Gemma 3 asks its table twice."""
    kinds = ["full_attention", "sliding_attention"]
    model, seen = create(None, "gemma3_text", "AutoModel", layer_types=kinds).train(), []
    augment_positions(model, "pose_rope", pose_range=100.0)
    model.rotary_emb.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    for _ in range(2):
        model(tokens)
    assert len(seen) == 4
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[0], seen[2])


def test_positions_of_several_axes_are_refused(create, tokens):
    model = create(None, "llama").train()
    augment_positions(model, "pose_rope", pose_range=100.0)
    with pytest.raises(ValueError, match=r"position_ids of shape \[3, 2, 13\]"):
        model(
            tokens,
            position_ids=torch.arange(13).expand(3, 2, -1),
            attention_mask=torch.ones(2, 1, 13, 13, dtype=torch.bool).tril(),
        )


@pytest.mark.parametrize("pos", AUGMENTING)
def test_training_is_that_of_cape_llama(create, tokens, pos):
    """Two ways to one model: by name with a variant, and transformers' Llama augmented."""
    ours, stock = create(pos, **AUGMENTING[pos]), create(None, "llama")
    stock.load_state_dict(ours.state_dict(), strict=False)
    augment_positions(stock, pos, **AUGMENTING[pos])
    mask = torch.ones_like(tokens)
    mask[0, 9:] = 0
    labels, losses = tokens.masked_fill(mask == 0, -100), []
    for model in (ours, stock):
        torch.manual_seed(3)
        losses.append(model.train()(tokens, attention_mask=mask, labels=labels).loss)
    torch.testing.assert_close(losses[1], losses[0])


def test_a_checkpoint_is_stock(create, tokens, tmp_path):
    model = create(None, "llama")
    augment_positions(model, "cape_rope", max_global_scale=1.2)
    model.train()(tokens, labels=tokens).loss.backward()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again).__name__ == "LlamaForCausalLM"
    assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)


def test_undo_and_what_is_refused_twice(create, tokens):
    model = create(None, "llama")
    undo = augment_positions(model, "cape_rope")
    with pytest.raises(ValueError, match="cape_rope"):
        augment_positions(model, "pose_rope")
    undo()
    assert not any(one._forward_pre_hooks or one._forward_hooks for one in model.modules())
    logits = [model.train()(tokens).logits for _ in range(2)]
    assert torch.equal(*logits)
    augment_positions(model, "pose_rope")


def test_gradient_checkpointing_compile_and_peft_see_the_same_positions(create, tokens):
    peft = pytest.importorskip("peft")
    plain = create(None, "llama")
    saving = copy.deepcopy(plain)
    saving.gradient_checkpointing_enable()
    lora = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(plain), lora)
    losses = []
    for model in (plain, saving, adapted):
        augment_positions(model, "pose_rope", pose_range=100.0)
        torch.manual_seed(1)
        losses.append(model.train()(input_ids=tokens, labels=tokens).loss)
        losses[-1].backward()
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(losses[2], losses[0])


@pytest.mark.parametrize(
    ("pos", "options", "named"),
    [
        ("rope", {}, "rope"),
        ("cape", {}, "cape_rope"),
        ("alibi", {}, "pose_rope"),
        ("cape_rope", dict(max_global_scale=0.5), "max_global_scale"),
        ("cape_rope", dict(rope_base=5e5), "rope_base"),
        ("cape_rope", dict(pose_range=100.0), "pose_range"),
        ("pose_rope", dict(max_scale=100.0), "max_scale"),
    ],
)
def test_what_is_wrong_is_refused(create, pos, options, named):
    with pytest.raises(ValueError, match=named):
        augment_positions(create(None, "llama"), pos, **options)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("bert", "no rotary table"),
        ("gptj", "no rotary table"),
        ("wav2vec2-conformer", "does not take position_ids"),
        pytest.param("qwen2_vl", "in 2 places", marks=pytest.mark.release),  # 2 billion
    ],
)
def test_a_model_that_cannot_be_served_is_named(create, kind, named):
    own = dict(position_embeddings_type="rotary", num_hidden_layers=1) if "wav" in kind else {}
    model = create(None, kind, "AutoModel", **own)
    with pytest.raises(ValueError, match=f"{type(model).__name__}.*{named}"):
        augment_positions(model, "cape_rope")


def test_a_model_that_is_split_over_ranks_is_refused(create):
    model = create(None, "llama")
    model._tp_size = 2  # what from_pretrained(tp_plan="auto") notes
    with pytest.raises(ValueError, match="tp_plan"):
        augment_positions(model, "cape_rope")
