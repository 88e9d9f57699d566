"""No module keeps anything of one forward for another: positions travel with the forward."""

import copy
import functools
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import shared_variant
from cape_support import in_turns, replica

PAD, EOS = 1, 2
# of other lengths
SHORT = (torch.tensor([[5, 6, EOS], [8, 9, EOS]]), torch.tensor([[EOS, 10], [EOS, 14]]))
LONG = (
    torch.tensor([[5, 6, 7, 8, 9, EOS], [PAD, PAD, 8, 5, 4, EOS]]),
    torch.tensor([[EOS, 10, 11, 12, 13], [EOS, 14, 15, PAD, PAD]]),
)
# as long as LONG, padded elsewhere
PADDED = (
    torch.tensor([[PAD, PAD, PAD, 8, 9, EOS], [5, 4, 8, 5, 4, EOS]]),
    torch.tensor([[PAD, EOS, 11, 12, 13], [PAD, PAD, EOS, 16, 17]]),
)
ADMIN = dict(admin_init=True, admin_scales="1,1.5,2,2.5,1,1.1,1.2,1.3,1.4,1.5")
LM = {"arch": "cape_transformer_lm"}
CASES = [(pos, {}) for pos in ("cape", "relpos_first", "rope", "cape_alibi")]
CASES += [("sinpos", ADMIN), ("random_rope", LM)]


def forward(model, pair):
    """Logits of what is no padding."""
    source, target = pair
    out = model(source, None, target) if hasattr(model, "encoder") else model(target)
    return out[0][target.ne(PAD)]


def nothing(model):
    pass


def gradients(model, between=nothing):
    """Of two forwards of different lengths before one backward."""
    torch.manual_seed(3)
    total = 0
    for pair in (SHORT, LONG):
        total += forward(model, pair).square().sum()
        between(model)
    total.backward()
    return [p.grad for p in model.parameters()]


def evaluate(model):
    with torch.no_grad():
        forward(model.eval(), PADDED)
    model.train()


def copy_and_pickle(model):
    expected = forward(copy.deepcopy(model).eval(), LONG)
    again = pickle.loads(pickle.dumps(model)).eval()
    torch.testing.assert_close(forward(again, LONG), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("pos", "options"), CASES)
@pytest.mark.parametrize(
    ("between", "kept"),
    [
        (nothing, "checkpoint_activations"),
        (evaluate, "offload_activations"),  # which implies the other
        (copy_and_pickle, "checkpoint_activations"),
    ],
)
def test_two_forwards_before_one_backward_with_checkpointing(build, pos, options, between, kept):
    found = gradients(build(pos, train=True, **options, **{kept: True}), between)
    for mine, plain in zip(found, gradients(build(pos, train=True, **options)), strict=True):
        # torch takes another kernel of attention where nothing needs a gradient
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", ["checkpoint_activations", "offload_activations"])
def test_what_layers_share_gets_its_gradients_with_checkpointing(build, kept, monkeypatch):
    """fairseq's is reentrant: a tuple's tensors would go backward once for each layer."""
    shared_variant.register(monkeypatch, "nopos")
    found, plain = (gradients(build("nopos", train=True, **o)) for o in ({kept: True}, {}))
    for mine, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("one_model", [True, False])
@pytest.mark.parametrize(("pos", "options"), CASES)
def test_two_threads_at_the_same_point_of_their_forwards(build, pos, options, one_model):
    model = build(pos, **options)
    models = [model, model] if one_model else [replica(model), replica(model)]
    calls = [functools.partial(forward, pair=pair) for pair in (LONG, PADDED)]
    expected = [call(model) for call in calls]
    torch.testing.assert_close(in_turns(models, calls), expected, rtol=0, atol=1e-6)


class Elsewhere(torch.nn.Module):
    """A layer in a thread of its own, as pipelines run layers."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **named):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.layer, *args, **named).result()


@pytest.mark.parametrize("pos", ["rope", "relpos_first"])
def test_layers_in_other_threads_have_positions(build, pos):
    model = build(pos)
    expected = forward(model, LONG)
    for side in (model.encoder, model.decoder):
        side.layers = torch.nn.ModuleList(map(Elsewhere, side.layers))
    torch.testing.assert_close(forward(model, LONG), expected, rtol=0, atol=0)
