"""The optimizer radam, as fairseq builds it."""

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import cape_plugins.fairseq


def configure(*arguments):
    parser = options.get_training_parser()
    args = ["/nowhere", "--arch", "cape_transformer_tiny", "--optimizer", "radam", *arguments]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, args))


def test_it_takes_the_steps_of_torch():
    config = configure("--lr", "0.1", "--adam-betas", "(0.8, 0.98)", "--weight-decay", "0.01")
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    optimizer = optim.build_optimizer(config.optimizer, [ours])
    expected = torch.optim.RAdam(
        [theirs], lr=0.1, betas=(0.8, 0.98), weight_decay=0.01, decoupled_weight_decay=True
    )
    for step in range(10):
        for p, step_of in ((ours, optimizer), (theirs, expected)):
            step_of.zero_grad()
            (p.square() * (step + 1)).sum().backward()
            step_of.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert (ours != torch.tensor([1.0, -2.0])).all()


def test_the_defaults_are_those_of_adam():
    adam = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(
            options.get_training_parser(),
            ["/nowhere", "--arch", "cape_transformer_tiny", "--optimizer", "adam"],
        )
    )
    ours = optim.build_optimizer(configure().optimizer, [torch.nn.Parameter(torch.ones(1))])
    stock = optim.build_optimizer(adam.optimizer, [torch.nn.Parameter(torch.ones(1))])
    assert ours.optimizer_config == {**stock.optimizer_config, "betas": (0.9, 0.999)}
    assert tuple(stock.optimizer_config["betas"]) == (0.9, 0.999)


def test_half_precision_training_may_flatten_what_it_optimises():
    # fairseq asks this before --fp16 makes one tensor of all weights
    optimizer = optim.build_optimizer(configure().optimizer, [torch.nn.Parameter(torch.ones(3))])
    assert optimizer.supports_flat_params


@pytest.mark.parametrize("betas", ["0.9", "(0.9, 1.5)", "nonsense(", "(0.9, 0.98, 0.99)"])
def test_wrong_betas_are_refused(betas):
    config = configure("--adam-betas", betas)
    with pytest.raises(ValueError, match="--adam-betas must be two numbers"):
        optim.build_optimizer(config.optimizer, [torch.nn.Parameter(torch.ones(1))])


def test_registering_twice_changes_nothing():
    cape_plugins.fairseq.register()
    assert configure().optimizer._name == "radam"
