"""Numbers worked out by hand, with every option of transformers' own away from its default."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cape_plugins import Given, PositionalAttention, Variant, distances, register_variant
from cape_plugins.attention import with_heads
from cape_plugins.augment import Augmentation
from cape_plugins.rotary import Rotary
from cape_plugins.sinusoid import Sinusoids
from cape_plugins.transformers import augment_positions
from cape_plugins.transformers.cached import count

CLOSE = dict(rtol=1e-4, atol=2e-5)

pytestmark = pytest.mark.filterwarnings("ignore")


class TurnsAndAdds(Rotary):
    """Embeds, and adds to the scores: cached keys keep their turn, and have a distance."""

    def bias(self, query, key, given):
        return torch.zeros((), device=query.device).expand(1, 1, 1, 1)


class Window(PositionalAttention):
    """Narrows the mask alone: a query sees keys at most two tokens away."""

    def prepare(self, queries, keys, mask, dtype):
        near = (distances(queries[:, :, None], keys[:, None]) / self.sizes.spacing <= 2.5)[:, None]
        mask = with_heads(mask)
        if mask is None or mask.dtype == torch.bool:
            return Given(mask=near if mask is None else mask & near)
        return Given(mask=mask.masked_fill(~near, -math.inf))


class Halves(PositionalAttention):
    """Half of each score."""

    def scores(self, query, key, given):
        return super().scores(query / 2, key, given)


class Attends(PositionalAttention):
    """The same, by weights of its own."""

    def attend(self, query, *rest):
        return super().attend(query / 2, *rest)


class Forwards(PositionalAttention):
    """The same, by a forward of its own."""

    def forward(self, query, key, value, given, dropout, need_weights, *, cache, attend):
        key, value = cache(key, value)
        assert attend is None
        return self.attend(query / 2, key, value, given, dropout, need_weights)


class Sevens(PositionalAttention):
    """One parameter for all layers, which is 7 at first."""

    def __post_init__(self):
        super().__post_init__()
        self.seven = nn.Parameter(torch.full((2,), 7.0))

    def bias(self, query, key, given):
        return self.seven.sum().expand(1, 1, 1, 1)


@pytest.fixture(autouse=True)
def registered(own_table):
    """They have names while a test of this file runs."""
    register_variant("turns_and_adds", Variant(attends=TurnsAndAdds))
    register_variant("window", Variant(attends=Window))
    register_variant("halves", Variant(attends=Halves))
    register_variant("attends", Variant(attends=Attends))
    register_variant("forwards", Variant(attends=Forwards))
    register_variant("sevens", Variant(attends=Sevens, one_for_all=True))
    all_three = Variant(adds=Sinusoids, attends=Rotary, augments=Augmentation)
    register_variant("adds_and_turns", all_three)


@torch.no_grad()
def test_alibi_is_a_softmax_of_distances_where_queries_are_zero(create, tokens):
    """Press et al.: slopes of four heads are 1/4, 1/16, 1/64, 1/256."""
    model = create("alibi", attn="eager", num_hidden_layers=1, attention_dropout=0.5)
    model.model.layers[0].self_attn.q_proj.weight.zero_()
    found = model(tokens, output_attentions=True).attentions[0]
    for head, slope in enumerate([1 / 4, 1 / 16, 1 / 64, 1 / 256]):
        each = torch.tensor([math.exp(-2 * slope), math.exp(-slope), 1.0])
        torch.testing.assert_close(found[0, head, 2, :3], each / each.sum())
        assert not found[0, head, 2, 3:].any()


@pytest.mark.parametrize(
    ("pos", "kind"),
    [("sinpos", "llama"), ("cape", "llama"), ("random", "llama"), ("sinpos", "eurobert")],
)
@torch.no_grad()
def test_tokens_are_scaled_by_the_root_of_channels_where_sinusoids_are_added(
    create, tokens, pos, kind
):
    model, seen = create(pos, f"cape_{kind}", "AutoModel"), []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(tokens)
    angles = torch.arange(13)[:, None] * 1e4 ** (-torch.arange(16) / 16)
    by_hand = torch.cat([angles.sin(), angles.cos()], dim=1)
    where = torch.arange(13.0)[None, :, None]
    by_name = model.positions.added.embedding(where, torch.float32)
    torch.testing.assert_close(by_name[0].sort().values, by_hand.sort().values, **CLOSE)
    expected = math.sqrt(32) * model.embed_tokens(tokens) + by_name
    torch.testing.assert_close(seen[0], expected)


@torch.no_grad()
def test_tables_and_rotations_leave_tokens_as_they_are(create, tokens):
    model, seen = create("rope"), []
    model.model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(tokens)
    assert torch.equal(seen[0], model.model.embed_tokens(tokens))


@pytest.mark.parametrize("pos", ["rope", "alibi"])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@torch.no_grad()
def test_attention_drops_weights_in_training_alone(create, tokens, pos, attn):
    model = create(pos, attn=attn, attention_dropout=0.5)
    kept = create(pos, attn=attn)(tokens).logits
    for _ in range(2):
        torch.testing.assert_close(model.eval()(tokens).logits, kept)
    first, second = (model.train()(tokens).logits for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-3)
    assert not torch.allclose(first, kept, atol=1e-3)


@pytest.mark.parametrize("pos", ["rope", "alibi", "relpos"])
@torch.no_grad()
def test_grouped_keys_are_of_neighbouring_heads(create, tokens, pos):
    """Heads 0 and 1 have the first keys, 2 and 3 the second."""
    grouped, single = create(pos), create(pos, num_key_value_heads=4)
    weights = grouped.state_dict()
    for name in weights:
        if "k_proj" in name or "v_proj" in name:
            first, second = weights[name].chunk(2)
            weights[name] = torch.cat([first, first, second, second])
    single.load_state_dict(weights)
    torch.testing.assert_close(single(tokens).logits, grouped(tokens).logits, **CLOSE)


@torch.no_grad()
def test_keys_that_turn_and_have_distances_turn_once(create, tokens):
    model = create("turns_and_adds")
    out = model(tokens[:, :7], use_cache=True)
    cache = out.get("cache") or out.get("past_key_values")
    found = model(tokens[:, 7:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(tokens).logits[:, 7:], **CLOSE)
    rope = create("rope")
    torch.testing.assert_close(model(tokens).logits, rope(tokens).logits, **CLOSE)


@pytest.mark.parametrize("kind", ["cape_llama", "cape_eurobert"])
@torch.no_grad()
def test_a_mask_that_a_variant_narrows_is_used(create, tokens, kind):
    model = create("window", kind, "AutoModel", num_hidden_layers=1)
    other = tokens.clone()
    other[:, 3] = 96  # seen by tokens 3, 4, 5, and in the encoder by 1 and 2
    changed = (model(other)[0] - model(tokens)[0]).abs().sum(dim=2).gt(1e-4)[0]
    seen = [3, 4, 5] if kind == "cape_llama" else [1, 2, 3, 4, 5]
    assert changed.nonzero()[:, 0].tolist() == seen


@pytest.mark.parametrize("pos", ["halves", "attends", "forwards"])
@torch.no_grad()
def test_scores_and_a_forward_of_its_own_are_used_with_the_mask(create, tokens, pos):
    plain, model = create("nopos", attn="eager"), create(pos, attn="eager")
    for layer in plain.model.layers:
        layer.self_attn.q_proj.weight.mul_(0.5)
    torch.testing.assert_close(model(tokens).logits, plain(tokens).logits, **CLOSE)


def test_one_module_for_all_layers_is_one_in_the_state_dict(create, tokens):
    model = create("sevens")
    shared = [name for name in model.state_dict() if name.endswith("seven")]
    assert shared == ["model.layers.0.self_attn.positional.seven"]
    attentions = [layer.self_attn for layer in model.model.layers]
    assert attentions[0].positional is attentions[1].positional


@pytest.mark.parametrize("pos", ["abspos", "alibi"])
@pytest.mark.parametrize("kind", ["cape_llama", "cape_eurobert"])
@torch.no_grad()
def test_left_padding_is_counted_from_the_mask(create, left_padded, pos, kind):
    model = create(pos, kind, "AutoModel")
    ids, mask = left_padded["input_ids"], left_padded["attention_mask"]
    found = model(ids, attention_mask=mask)[0][:1, 4:]
    torch.testing.assert_close(found, model(ids[:1, 4:])[0], **CLOSE)


def test_tokens_are_counted_from_a_mask_and_those_beyond_it_stand_at_its_end():
    mask, where = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), torch.arange(1, 6)[None]
    assert count(mask, where).tolist() == [[0, 0, 1, 1, 1], [1, 2, 2, 2, 2]]
    for other in (None, mask[:, None, None]):
        assert torch.equal(count(other, where), where)


def test_each_process_draws_its_own(create, tokens, monkeypatch):
    """Several processes have one seed."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    model, losses = create("cape_rope").train(), []
    for rank in (0, 1, 0):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(1)
        losses.append(model(tokens, labels=tokens).loss)
    assert losses[0] == losses[2] != losses[1]


def test_what_is_drawn_is_refused_where_ranks_share_each_sample(create, tokens):
    model = create("cape_rope")
    model.config.distributed_config = SimpleNamespace(tp_size=2)
    model(tokens)
    with pytest.raises(ValueError, match="tensor parallelism"):
        model.train()(tokens)


@pytest.mark.parametrize("given", [{}, dict(input_ids=1, inputs_embeds=1)])
def test_tokens_are_given_in_one_way(create, tokens, given):
    model = create("rope").model
    named = dict(input_ids=tokens, inputs_embeds=model.embed_tokens(tokens))
    with pytest.raises(ValueError, match="inputs_embeds"):
        model(**{name: named[name] for name in given})


def test_embeddings_may_be_given(create, tokens):
    model = create("cape").model
    found = model(inputs_embeds=model.embed_tokens(tokens))[0]
    torch.testing.assert_close(found, model(tokens)[0])


def test_positions_of_an_augmented_llama_begin_at_zero(create, tokens):
    """λ scales about the first token: nothing is centred."""
    model, seen = create(None, "llama").train(), []
    augment_positions(model, "cape_rope", max_global_scale=1.5, max_local_shift=0.0)
    table = model.model.rotary_emb
    table.register_forward_pre_hook(
        lambda _, args, named: seen.append(named["position_ids"]), with_kwargs=True
    )
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    model(tokens, attention_mask=mask)
    (where,) = seen
    assert where.shape == (2, 13)
    assert not where[0, 0]
    torch.testing.assert_close(where[0], where[0, 1] * torch.arange(13.0))
    assert 1 / 1.5 <= where[0, 1] <= 1.5
    assert where[1, :3].tolist() == [0.0, 1.0, 2.0]  # padding stays
    assert where[1, 4] != where[0, 4]
    model.eval()(tokens)
    assert seen[1].tolist() == [[*range(13)]]


def test_models_with_tables_in_two_places_or_of_several_axes_are_refused(create):
    two = nn.ModuleDict({"a": create(None, "llama"), "b": create(None, "llama")})
    with pytest.raises(ValueError, match="2 places"):
        augment_positions(two, "cape_rope")
    model = create(None, "llama")
    model.clock = nn.ModuleList([nn.Module()])  # with frequencies, but of no rotation
    model.clock[0].register_buffer("inv_freq", torch.ones(4))
    augment_positions(model, "cape_rope")
    for where in ("attribute", "parameters"):
        model = create(None, "llama")
        if where == "attribute":
            model.model.rotary_emb.mrope_section = [2, 1, 1]
        else:
            model.model.rotary_emb.config.rope_parameters["mrope_section"] = [2, 1, 1]
        with pytest.raises(ValueError, match="several axes"):
            augment_positions(model, "cape_rope")


@pytest.mark.parametrize("pos", ["adds_and_turns", "cape_alibi", "window"])
def test_what_does_more_than_move_turning_positions_is_refused(create, pos):
    with pytest.raises(ValueError, match=pos):
        augment_positions(create(None, "llama"), pos)


def test_a_table_that_is_not_used_is_told(create, tokens):
    model = create(None, "llama").train()
    augment_positions(model, "cape_rope")
    model.model.rotary_emb, model.model.other = nn.Identity(), model.model.rotary_emb
    model.model.rotary_emb.forward = lambda x, position_ids: (x.new_ones(1, 13, 8),) * 2
    with pytest.raises(ValueError, match="does not use it"):
        model(tokens)


def test_abspos_refuses_a_text_beyond_its_table(create):
    with pytest.raises(ValueError, match="0 … 63"):
        create("abspos")(torch.ones(1, 65, dtype=torch.long))


@pytest.mark.parametrize("name", ["alibi_unit", "overflow", "spread"])
def test_an_option_that_the_model_sets_is_refused(create, name):
    with pytest.raises(ValueError, match=f"{name} is set by the model"):
        create("alibi", **{name: 2.0})
