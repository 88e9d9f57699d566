"""What integrations/fairseq/README.md says of fairseq's limits, on a CPU."""

import re

import pytest
import torch

from cape_plugins import variants
from cape_support import ROOT

PAGE = ROOT / "integrations" / "fairseq" / "README.md"
pytestmark = pytest.mark.release


PAIRS = [
    ([[5, 6, 7, 2]], [[2, 10, 11]]),
    ([[5, 6, 7, 8, 9, 2]], [[2, 10, 11, 9, 8, 7]]),
    ([[5, 6, 7, 2], [1, 5, 7, 2]], [[2, 10, 11], [2, 9, 1]]),  # with padding
]


def as_onnx(model, file):
    """By torch's older exporter, with padding in the example: fairseq's own encoder asks whether
    there is any, and the answer stays."""
    axes = {"source": {0: "pairs", 1: "words"}, "target": {0: "pairs", 1: "more"}}
    names = dict(input_names=["source", "lengths", "target"], output_names=["scores"])
    axes |= {"lengths": {0: "pairs"}, "scores": axes["target"]}
    torch.onnx.export(model, of(PAIRS[-1]), file, dynamo=False, dynamic_axes=axes, **names)


def of(pair):
    source, target = map(torch.tensor, pair)
    return source, source.ne(1).sum(1), target


NOT_BY_ONNX = {"relpos", "relpos_first", "random", "random_rope"}


def test_the_page_names_what_onnx_does_not_take():
    (line,) = re.findall(r"- \*\*ONNX\*\*.*?\n\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert {*re.findall(r"`(\w+)`", line.split("not", 1)[1])} == NOT_BY_ONNX


@pytest.mark.parametrize("pos", sorted({*variants.names(1)} - NOT_BY_ONNX))
@pytest.mark.filterwarnings("ignore")  # of the exporter: it is the older one
def test_onnx_takes_a_model_for_sentences_of_any_length(pos, build, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = build(pos)
    as_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    asked = {one.name for one in session.get_inputs()}
    for pair in map(of, PAIRS):
        named = dict(zip(("source", "lengths", "target"), pair, strict=True))
        given = {name: one.numpy() for name, one in named.items() if name in asked}
        (scores,) = session.run(["scores"], given)
        torch.testing.assert_close(torch.tensor(scores), model(*pair)[0], rtol=1e-4, atol=1e-5)
