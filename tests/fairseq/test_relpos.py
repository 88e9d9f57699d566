"""--pos relpos: self-attention with relative positions, inside fairseq's layers."""

import re

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention

from cape_plugins.attention import CurrentPositions, RelativeAttention
from cape_plugins.fairseq.layers import PositionalMultiheadAttention

BOS, PAD, EOS = 0, 1, 2
DIM, HEADS, T, B, CONTEXT = 16, 2, 7, 3, 2
# row 0 is padded on the right, row 1 on the left
PADDING = torch.zeros(B, T, dtype=torch.bool)
PADDING[0, 5:] = True
PADDING[1, :2] = True
CAUSAL = torch.full((T, T), -torch.inf).triu(1)


@pytest.fixture
def attend():
    def build(*, values=False, **options):
        torch.manual_seed(0)
        relative = RelativeAttention(DIM // HEADS, CONTEXT, values=values)
        positions = CurrentPositions()
        return PositionalMultiheadAttention(DIM, HEADS, relative, positions, **options).eval()

    return build


@pytest.fixture
def x():
    return torch.randn(T, B, DIM, generator=torch.Generator().manual_seed(1))


def by_the_formula(module, x, mask):
    """Equations 3 and 4 of Shaw et al., one query and one key at a time; mask (B, T, T)."""
    d = DIM // HEADS
    q, k, v = (p(x).view(T, B, HEADS, d) for p in (module.q_proj, module.k_proj, module.v_proj))
    out = torch.zeros(T, B, HEADS, d)
    zero = torch.zeros(d)
    for b in range(B):
        for h in range(HEADS):
            for i in range(T):
                distance = [CONTEXT + min(max(j - i, -CONTEXT), CONTEXT) for j in range(T)]
                keys = [k[j, b, h] + module.relative.keys[distance[j]] for j in range(T)]
                scores = torch.stack([q[i, b, h] @ key for key in keys]) / d**0.5
                weights = (scores + mask[b, i]).softmax(dim=0)
                for j in range(T):
                    table = module.relative.values
                    extra = zero if table is None else table[distance[j]]
                    out[i, b, h] += weights[j] * (v[j, b, h] + extra)
    return module.out_proj(out.flatten(2))


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_formula(attend, x, values, need_weights, causal):
    module = attend(values=values)
    padding = PADDING & torch.tensor([True, not causal, True])[:, None]  # else a row sees nothing
    mask = torch.zeros(B, T, T).masked_fill(padding[:, None], -torch.inf)
    expected = by_the_formula(module, x, mask + CAUSAL if causal else mask)
    got, weights = module(
        *(x, x, x, padding), attn_mask=CAUSAL if causal else None, need_weights=need_weights
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert (weights is not None) == need_weights


@pytest.mark.parametrize("need_weights", [False, True])
def test_without_vectors_it_is_the_attention_of_fairseq(attend, x, need_weights):
    module = attend(values=True)
    torch.nn.init.zeros_(module.relative.keys)
    torch.nn.init.zeros_(module.relative.values)
    stock = MultiheadAttention(DIM, HEADS, self_attention=True).eval()
    stock.load_state_dict(module.state_dict(), strict=False)
    for heads in (False, True) if need_weights else (False,):
        ours = module(x, x, x, PADDING, need_weights=need_weights, need_head_weights=heads)
        # step by step is fairseq's own path, the only one that gives weights of each head
        theirs = stock(x, x, x, PADDING, {}, need_weights, need_head_weights=heads)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_dropout_of_attention_weights_applies_in_training_only(attend, x):
    module = attend(dropout=0.5)
    torch.testing.assert_close(
        module(x, x, x, need_weights=False), module(x, x, x, need_weights=False), rtol=0, atol=0
    )
    module.train()
    first = module(x, x, x, need_weights=False)[0]
    assert not torch.equal(first, module(x, x, x, need_weights=False)[0])


SOURCE = torch.tensor([[5, 6, 7, 8, 9, EOS], [8, 9, 5, 4, 5, EOS]])
TARGET = torch.tensor([[EOS, 10, 11, 12, 13, 14], [EOS, 14, 15, 16, 17, 18]])


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("layers", ["all", "first"])
def test_step_by_step_decoding_equals_full_decoding_beyond_the_context(
    build, assert_decodes_step_by_step, values, layers
):
    model = build("relpos", relpos_context=2, relpos_values=values, relpos_layers=layers)
    assert_decodes_step_by_step(model)


def test_decoding_follows_the_beam_when_it_is_reordered(build, assert_decodes_step_by_step):
    assert_decodes_step_by_step(build("relpos", relpos_context=2), reordered=True)


@pytest.mark.parametrize(("layers", "expected"), [("all", [0, 1]), ("first", [0])])
def test_layers_with_vectors_are_chosen_and_cross_attention_has_none(build, layers, expected):
    model = build("relpos", relpos_layers=layers, relpos_values=True)
    found = {name for name, _ in model.named_parameters() if ".relative." in name}
    assert found == {
        f"{side}.layers.{layer}.self_attn.relative.{table}"
        for side in ("encoder", "decoder")
        for layer in expected
        for table in ("keys", "values")
    }


def test_order_of_tokens_matters_only_through_the_vectors(build):
    model = build("relpos")
    shuffled = SOURCE[:, [2, 0, 1, 3, 4, 5]]
    target = TARGET[:, :1]
    before = model(SOURCE, None, target)[0]
    assert (model(shuffled, None, target)[0] - before).abs().max() > 1e-3
    for name, table in model.named_parameters():
        if ".relative." in name:
            torch.nn.init.zeros_(table)
    torch.testing.assert_close(
        model(shuffled, None, target)[0], model(SOURCE, None, target)[0], rtol=0, atol=1e-5
    )


def test_every_vector_within_reach_gets_a_gradient(build):
    model = build("relpos", train=True, relpos_context=2, relpos_values=True)
    model(SOURCE, None, TARGET)[0].square().sum().backward()
    relative = model.encoder.layers[0].self_attn.relative
    assert (relative.keys.grad.abs().sum(dim=1) > 0).all()
    assert (relative.values.grad.abs().sum(dim=1) > 0).all()
    causal = model.decoder.layers[0].self_attn.relative.keys.grad.abs().sum(dim=1) > 0
    assert causal.tolist() == [True, True, True, False, False]  # never looks ahead


def test_quantisation_noise_goes_with_it(build):
    model = build("relpos", train=True, quant_noise_pq=0.5)
    model(SOURCE, None, TARGET)[0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(("context", "told"), [(150, True), (9, True), (8, False)])
def test_a_context_beyond_the_longest_training_sentence_is_told(data, caplog, context, told):
    args = [str(data), "--arch", "cape_transformer_tiny", "--pos", "relpos"]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [*args, "--relpos-context", str(context)])
    config = convert_namespace_to_omegaconf(args)
    with caplog.at_level("INFO"):
        tasks.setup_task(config.task).build_model(config.model)
    message = f"has 9 tokens, so that the vectors of distances 9 to {context} stay untrained"
    assert (message in caplog.text) == told
    assert ("give at most 8" in caplog.text) == told


def test_it_trains_and_translates_by_name(data, pairs, run, tmp_path):
    run(
        *("fairseq-train", data, "--arch", "cape_transformer_tiny", "--pos", "relpos", "--cpu"),
        *("--relpos-context", 3, "--relpos-values", "--optimizer", "adam", "--lr", 0.005),
        *("--criterion", "label_smoothed_cross_entropy", "--batch-size", 5, "--max-update", 80),
        *("--dropout", 0, "--no-epoch-checkpoints", "--save-dir", tmp_path, "--num-workers", 0),
        *("--encoder-normalize-before", "--decoder-normalize-before", "--disable-validation"),
        *("--required-batch-size-multiple", 1),
    )
    output = run(
        *("fairseq-generate", data, "--path", tmp_path / "checkpoint_last.pt", "--cpu"),
        *("--beam", 3, "--batch-size", 4, "--required-batch-size-multiple", 1),
    ).stdout
    found = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, flags=re.MULTILINE))
    assert len(found) == len(pairs)
    assert sum(found[str(i)] == de for i, (_, de) in enumerate(pairs)) >= 5
