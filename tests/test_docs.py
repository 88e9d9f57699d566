"""The documentation's code runs: each core module's example, and the page on adding a variant."""

import ast
import doctest
import importlib
import re
import sys
import types

import pytest
import torch
from cape_plugins.embedding import PositionalEmbedding as Embedding

from cape_plugins import (
    PositionalEmbedding,
    attention,
    patch_grid,
    positions,
    token_positions,
    variants,
)
from cape_support import ROOT, blocks

MODULES = ["__init__", "positions", "sinusoid", "augment", "random_positions", "attention"]
MODULES += ["rotary", "alibi", "logn", "embedding", "variants", "settings", "mark"]


def given(module: str) -> dict[str, object]:
    """Names that an example uses without making them."""
    lengths, heads = torch.tensor([50, 30]), 6 if module == "rotary" else 8
    tokens = 196 if module == "rotary" else 50
    query, key, value = torch.randn(3, 2, heads, tokens, 64)
    names = dict(
        query=query, key=key, value=value, lengths=lengths, content=torch.randn(2, 50, 512)
    )
    names |= dict(patches=torch.randn(2, 196, 384), mask=torch.ones(2, 1, 1, 50).bool())
    names |= dict(positions=token_positions(lengths), model=torch.nn.Linear(2, 2), torch=torch)
    return names


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_core_run(module):
    source = (ROOT / "cape_plugins" / f"{module}.py").read_text()
    names = {**vars(positions), **vars(attention), **given(module)}
    names |= vars(importlib.import_module(f"cape_plugins.{module}".removesuffix(".__init__")))
    names |= {k: v for k, v in given(module).items() if not isinstance(v, types.ModuleType)}
    example = doctest.DocTestParser().get_doctest(
        ast.get_docstring(ast.parse(source)), names, module, None, 0
    )
    assert len(example.examples) >= 2
    failures, tried = doctest.DocTestRunner().run(example)
    assert (failures, tried) == (0, len(example.examples))


SOURCE, ROWS, SCRIPT = blocks(ROOT / "docs" / "adding-a-variant.md", "python")
HOW = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")


@pytest.fixture
def fire(monkeypatch) -> dict[str, variants.Variant]:
    """The rows that docs/adding-a-variant.md adds to the table, where they are now."""
    module = types.ModuleType("cape_plugins.fire")
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, "cape_plugins.fire", module)
    added = eval("{" + ROWS + "}", {**vars(variants), "Fire": module.Fire})
    monkeypatch.setattr(variants, "VARIANTS", {**variants.VARIANTS, **added})
    return added


def test_the_page_on_adding_a_variant_adds_one(fire):
    numbers = [variant.number for variant in variants.VARIANTS.values()]
    assert numbers == [*range(len(numbers))]
    assert [*variants.VARIANTS.values()][-2:] == [*fire.values()]
    names = dict(PositionalEmbedding=Embedding, token_positions=token_positions, torch=torch)
    names |= dict(AttentionSettings=attention.AttentionSettings, variants=variants)
    exec(SCRIPT, names)
    assert names["out"].shape == (2, 4, 10, 16)
    assert not torch.equal(names["moved"][0], token_positions([10])[0])


@pytest.mark.parametrize("axes", [1, 2])
def test_the_added_variant_attends_and_learns(axes, fire):
    sizes = attention.AttentionSettings(head_dim=4, heads=3, axes=axes, unit=0.5)
    torch.manual_seed(0)
    (layer,) = variants.attention_layers("fire", 1, sizes)
    where = token_positions([6, 4], 6) if axes == 1 else patch_grid(2, 3)[None]
    moved = PositionalEmbedding(12, "fire", axes=axes).eval().augment(where, 2)
    prepared = variants.prepare("fire", moved, sizes)
    query, key, value = torch.randn(3, 2, 3, 6, 4)
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    _, weights = layer(query, key, value, prepared, mask, need_weights=True)
    assert not weights[1, ..., 4:].any()
    for t in range(6):  # step by step as at once
        seen = slice(t + 1)
        step = layer(query[:, :, t : t + 1], key[:, :, seen], value[:, :, seen], prepared[:, seen])
        causal = torch.ones(6, 6, dtype=torch.bool).tril()
        at_once = layer(query, key, value, prepared, causal)[0]
        torch.testing.assert_close(step[0], at_once[:, :, t : t + 1])
    layer(query, key, value, prepared)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_how_it_works_names_files_and_functions_that_exist():
    rows = re.findall(r"^\| .* \| `(\S+\.py)` \| (.*) \|$", HOW, flags=re.MULTILINE)
    assert len(rows) == HOW.count("\n| ") - HOW.count("\n|---")
    for file, cell in rows:
        tree = ast.parse((ROOT / "cape_plugins" / file).read_text("utf-8"))
        for name in re.findall(r"`([\w.]+)`", cell):
            if name.endswith(".py"):
                continue
            place: ast.AST = tree
            for part in name.split("."):
                inside = {getattr(one, "name", ""): one for one in ast.iter_child_nodes(place)}
                assert part in inside, f"{file}: {name}"
                place = inside[part]
    for file in re.findall(r"`([\w/]+\.py)`", HOW):
        assert any(
            (ROOT / folder / file).is_file()
            for folder in ("cape_plugins", "studies/cape_studies", ".")
        ), file
