"""What is generated and what a cache holds: positions are those of evaluation, in training too."""

import copy
import io
import warnings

import pytest
import torch
from transformers import DynamicCache, StaticCache

from cape_plugins.transformers import augment_positions
from cape_plugins.transformers.attention import NAMES_OF_CACHE, name_of_cache
from cape_plugins.transformers.cached import positions_of_keys
from cape_support import in_turns, replica

CLOSE = dict(rtol=1e-4, atol=2e-5)
ADDING = ["relpos", "alibi", "fire"]  # to the scores
AUGMENTING = ["cape", "cape_rope", "cape_alibi", "random_rope", "pose_rope"]
GREEDY = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)

pytestmark = pytest.mark.filterwarnings("ignore")


def cache_of(out):
    return next(out[name] for name in NAMES_OF_CACHE if out.get(name) is not None)


@pytest.fixture(params=[*AUGMENTING, "augment_positions"])
def augmenting(request, create):
    """A model that draws positions in training: by name, and transformers' own Llama."""
    if request.param != "augment_positions":
        return create(request.param)
    model = create(None, "llama")
    augment_positions(model, "pose_rope", pose_range=100.0)
    return model


@pytest.mark.parametrize("named", [{}, dict(use_cache=False), dict(cache_implementation="static")])
def test_generate_in_training_gives_the_tokens_of_evaluation(augmenting, tokens, named):
    expected = augmenting.eval().generate(tokens, **GREEDY)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the cache holds keys")  # told of gradients alone
        assert torch.equal(augmenting.train().generate(tokens, **GREEDY, **named), expected)


def test_generate_in_training_with_checkpointing_of_gradients(create, tokens):
    model = create("cape_rope")
    expected = model.generate(tokens, **GREEDY)
    model.gradient_checkpointing_enable()
    assert torch.equal(model.train().generate(tokens, **GREEDY), expected)


def test_a_training_step_draws_though_transformers_makes_a_cache(augmenting, tokens):
    same = tokens[:1].expand(2, -1)
    first, second = (augmenting.train()(same, labels=same).logits for _ in range(2))
    assert not torch.allclose(first[0], first[1], atol=1e-5)
    assert not torch.allclose(first, second, atol=1e-5)
    with torch.no_grad():  # as dropout, where nothing is generated
        first, second = (augmenting(same).logits for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-5)


def test_steps_by_hand_in_training_are_a_whole_forward_or_refused(augmenting, tokens):
    with torch.no_grad():
        expected = augmenting.eval()(tokens).logits[:, 7:]
        for given in (dict(use_cache=True), dict(past_key_values=DynamicCache())):
            cache = cache_of(augmenting.train()(tokens[:, :7], **given))
            found = augmenting(tokens[:, 7:], past_key_values=cache).logits
            torch.testing.assert_close(found, expected, **CLOSE)

    drawn = cache_of(augmenting(tokens[:, :7]))
    for model in (augmenting, augmenting.eval()):
        with pytest.raises(ValueError, match="drawn in training"):
            model(tokens[:, 7:], past_key_values=drawn)
    drawn.reset()
    filled = augmenting(tokens[:, :7], past_key_values=drawn, use_cache=True)
    assert cache_of(filled) is drawn
    found = augmenting(tokens[:, 7:], past_key_values=drawn).logits
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_step_with_gradients_says_that_it_draws_nothing(augmenting, tokens):
    cache = cache_of(augmenting(tokens[:, :7]))
    expected = augmenting(tokens).logits[:, 7:]
    with pytest.warns(UserWarning, match="cache"):
        found = augmenting.train()(tokens[:, 7:], past_key_values=cache).logits
    torch.testing.assert_close(found, expected, **CLOSE)


def test_an_empty_cache_that_is_given_changes_nothing_in_a_training_step(augmenting, tokens):
    losses = []
    for cache in (None, DynamicCache(config=augmenting.config)):
        torch.manual_seed(0)
        losses.append(augmenting.train()(tokens, labels=tokens, past_key_values=cache).loss)
    assert losses[0] == losses[1]


def test_a_variant_that_draws_nothing_says_nothing(create, tokens):
    model = create("alibi").train()
    cache = cache_of(model(tokens[:, :7]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = model(tokens[:, 7:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(tokens).logits[:, 7:], **CLOSE)


def test_checkpointing_of_gradients_refuses_a_cache_with_keys(create, tokens):
    model = create("rope")
    cache = cache_of(model(tokens[:, :7]))
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient_checkpointing_disable"):
        model.train()(tokens[:, 7:], past_key_values=cache)
    assert model(tokens, past_key_values=DynamicCache()).logits.requires_grad


@pytest.mark.parametrize("pos", ADDING)
@torch.no_grad()
def test_a_cache_has_the_layers_of_the_model(create, tokens, pos):
    model = create(pos)
    for cache in (DynamicCache(), DynamicCache(config=model.config)):
        model(tokens, past_key_values=cache)
        assert len(cache) == len(cache.layers) == 2
        assert [one.keys.shape for one in cache.layers] == [(2, 2, 13, 8)] * 2


@pytest.mark.parametrize("pos", ADDING)
@torch.no_grad()
def test_positions_are_moved_as_keys_are(create, tokens, pos):
    model = create(pos)
    apart = 1 if pos == "relpos" else 3  # relpos counts the tokens of a whole text
    where = torch.stack([torch.arange(13), apart * torch.arange(13)])  # of each sample
    whole = model(tokens, position_ids=where).logits
    order = torch.tensor([1, 0])

    def cache():
        return cache_of(model(tokens[:, :7], position_ids=where[:, :7]))

    def steps(cache, rows):
        found = model(tokens[rows, 7:], past_key_values=cache, position_ids=where[rows, 7:]).logits
        torch.testing.assert_close(found, whole[rows, 7:], **CLOSE)

    for name, given, rows in (
        ("reorder_cache", order, order),
        ("batch_select_indices", order[:1], order[:1]),
        ("batch_repeat_interleave", 2, torch.tensor([0, 0, 1, 1])),
    ):
        moved = cache()
        getattr(moved, name)(given)
        steps(moved, rows)
    longer = cache()
    model(tokens[:, :2], past_key_values=longer)
    longer.crop(-2)
    steps(longer, torch.arange(2))
    steps(copy.deepcopy(cache()), torch.arange(2))
    file = io.BytesIO()
    torch.save(cache(), file)
    file.seek(0)
    steps(torch.load(file, weights_only=False), torch.arange(2))
    again = cache()
    again.reset()
    model(tokens[:, :7], past_key_values=again, position_ids=where[:, :7])
    steps(again, torch.arange(2))


@pytest.mark.parametrize("pos", ADDING)
@torch.no_grad()
def test_keys_alone_stand_where_the_mask_counts_them(create, left_padded, pos):
    """A cache rebuilt from keys and values, as nn.DataParallel gathers it."""
    model, ids, mask = create(pos), left_padded["input_ids"], left_padded["attention_mask"]
    whole = model(**left_padded).logits[:, 7:]
    cache = cache_of(model(ids[:, :7], attention_mask=mask[:, :7]))
    rebuilt = DynamicCache([(one.keys, one.values) for one in cache.layers])
    found = model(ids[:, 7:], attention_mask=mask, past_key_values=rebuilt).logits
    torch.testing.assert_close(found, whole, **CLOSE)


@torch.no_grad()
def test_keys_that_were_changed_alone_are_refused(create, tokens):
    model = create("alibi")
    cache = cache_of(model(tokens))
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, 4:], layer.values[:, :, 4:]
    with pytest.raises(ValueError, match="9 keys and 13 positions"):
        model(tokens[:, :1], past_key_values=cache)
    static = StaticCache(config=model.config, max_cache_len=20)
    for layer in range(2):
        static.update(torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8), layer)
    with pytest.raises(ValueError, match="static cache"):
        model(tokens[:, :1], past_key_values=static)


def test_keys_that_a_static_cache_has_only_room_for_have_no_position(create):
    static = StaticCache(config=create("alibi").config, max_cache_len=5)
    found = positions_of_keys(static, torch.arange(3.0)[None], batch=2)
    expected = torch.tensor([0.0, 1.0, 2.0, torch.nan, torch.nan]).expand(2, -1)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("pos", ["rope", *ADDING])
def test_drafts_do_not_change_tokens(create, tokens, pos):
    """Of the first layers, of another model, and of the prompt."""
    model, other = create(pos), create(pos, num_attention_heads=2)
    expected = model.generate(tokens[:1], **GREEDY)
    for named in (
        dict(assistant_early_exit=1),
        dict(assistant_model=other),
        dict(prompt_lookup_num_tokens=3),
    ):
        assert torch.equal(model.generate(tokens[:1], **GREEDY, **named), expected)
    assert model.config.num_hidden_layers == 2


@pytest.mark.parametrize("kind", ["cape_llama", "llama"])
def test_replicas_in_threads_draw_their_own_positions(create, tokens, kind):
    """nn.DataParallel's replicas, made as it makes them, without its GPUs."""
    model = create("pose_rope" if kind == "cape_llama" else None, kind).train()
    if kind == "llama":
        augment_positions(model, "pose_rope", pose_range=100.0)
    texts = tokens, tokens[:, :5]
    calls = [lambda one, x=x: one(x, attention_mask=torch.ones_like(x)).logits for x in texts]
    found = in_turns([replica(model), replica(model)], calls)
    assert [one.shape[:2] for one in found] == [(2, 13), (2, 5)]


def test_a_forward_that_fails_leaves_nothing_behind(create, tokens):
    model = create(None, "llama").train()
    augment_positions(model, "pose_rope", pose_range=100.0)
    with pytest.raises(IndexError):
        model(torch.tensor([[1000]]))
    model.model.rotary_emb(torch.zeros(1, 3, 32), torch.arange(3)[None])  # nobody's forward


def test_the_cache_goes_by_a_name_that_transformers_has():
    class Attention:
        def forward(self, hidden_states, keys=None): ...

    with pytest.raises(ImportError, match=r"Attention.forward.*transformers"):
        name_of_cache(Attention.forward)


def test_one_cache_by_one_name(create, tokens):
    with pytest.raises(ValueError, match="past_key_values"):
        create("rope").model(tokens, past_key_values=DynamicCache(), cache=DynamicCache())
    encoder = create("alibi", "cape_eurobert", "AutoModel")
    with pytest.raises(ValueError, match="encoder"):
        encoder(tokens, past_key_values=DynamicCache())
