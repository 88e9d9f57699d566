"""The optimizer radam, as fairseq builds it."""

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import cape_plugins.fairseq


def configure(*arguments, optimizer="radam"):
    args = ["/nowhere", "--arch", "cape_transformer_tiny", "--optimizer", optimizer, *arguments]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, args)).optimizer


def test_it_takes_the_steps_of_torch():
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    config = configure("--lr", "0.1", "--adam-betas", "(0.8, 0.98)", "--weight-decay", "0.01")
    optimizer = optim.build_optimizer(config, [ours])
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


def test_the_defaults_are_those_of_adam_whatever_registers_again():
    cape_plugins.fairseq.register()
    weights = [torch.nn.Parameter(torch.ones(3))]
    ours = optim.build_optimizer(configure(), weights)
    stock = optim.build_optimizer(configure(optimizer="adam"), weights).optimizer_config
    assert ours.optimizer_config == {**stock, "betas": (0.9, 0.999)}
    assert tuple(stock["betas"]) == (0.9, 0.999)
    # fairseq asks this before --fp16 makes one tensor of all weights
    assert ours.supports_flat_params


@pytest.mark.parametrize("betas", ["nonsense(", "0.9", "(0.9, 0.98, 0.9)", "(0.9, 1.5)", "(-1, 0)"])
def test_wrong_betas_are_refused_whatever_the_model(betas):
    config = configure()
    config.adam_betas = betas
    with pytest.raises(ValueError, match="--adam-betas of two numbers"):
        optim.build_optimizer(config, [torch.nn.Parameter(torch.ones(1))])
