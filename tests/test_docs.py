"""The documentation is true: each core module's example runs, and what pages name exists."""

import ast
import doctest
import re
from importlib import import_module

import pytest
import torch

import cape_fire
import cape_plugins
from cape_plugins import token_positions
from cape_support import ROOT

SOURCES = {path.stem: path.read_text("utf-8") for path in (ROOT / "cape_plugins").glob("*.py")}
MODULES = [name for name, source in SOURCES.items() if re.search("^ *>>> ", source, re.MULTILINE)]


def given(module: str) -> dict[str, object]:
    """Names that an example uses without making them."""
    tokens, dim, heads = (196, 384, 6) if module in ("rotary", "sinusoid") else (50, 512, 8)
    lengths = torch.tensor([50, 30])
    content, (query, key, value) = torch.randn(2, tokens, dim), torch.randn(3, 2, heads, tokens, 64)
    return dict(
        **dict(query=query, key=key, value=value, content=content, x=content, lengths=lengths),
        **dict(mask=torch.ones(2, 1, 1, tokens).bool(), new=torch.randn(2, 1, dim), torch=torch),
        **dict(TRAINING=(), weights={}, Fire=cape_fire.Fire, model=torch.nn.Identity()),
        positions=token_positions(lengths)[:1, :, None],
        register_variant=lambda name, variant: None,  # the installed package has done it
    )


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_core_run(module):
    names = {name: getattr(cape_plugins, name) for name in cape_plugins.__all__}
    names |= vars(import_module(f"cape_plugins.{module}".removesuffix(".__init__")))
    text = ast.get_docstring(ast.parse(SOURCES[module]))
    example = doctest.DocTestParser().get_doctest(text, names | given(module), module, None, 0)
    assert len(example.examples) >= 2
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


HOW = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")


def test_how_it_works_names_files_and_functions_that_exist():
    folder = ""
    for line in HOW.splitlines():
        if host := re.fullmatch(r"\| what \| file in `(\w+)/` \| where \|", line):
            folder = host[1]
        elif row := re.fullmatch(r"\| .* \| `(\w+\.py)` \| (.*) \|", line):
            source = (ROOT / "cape_plugins" / folder / row[1]).read_text("utf-8")
            for name in re.findall(r"\w+", " ".join(re.findall(r"`([\w.]+)`", row[2]))):
                assert re.search(rf"^ *(def|class) {name}\b|^{name} = ", source, re.MULTILINE), name
    for file in re.findall(r"`([\w/]+\.py)`", HOW):
        assert [*(ROOT / "cape_plugins").glob(f"**/{file.removeprefix('cape_plugins/')}")], file
