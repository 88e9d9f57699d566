"""The largest batch, and the timing. The rest is in test_evaluate.py."""

import pytest
import torch

timm = pytest.importorskip("timm")

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import throughput  # noqa: E402
from cape_plugins.evaluation.timm.scoring import Runtime  # noqa: E402

CAPE, SMALL = "vit_tiny_patch4_cape_32", dict(depth=1, embed_dim=32, num_heads=2)


def test_the_batch_is_doubled_up_to_the_limit():
    model, tried = timm.create_model(CAPE, **SMALL).eval(), []
    model.register_forward_pre_hook(lambda module, args: tried.append(len(args[0])))
    with torch.inference_mode():
        assert throughput._largest_batch(model, 16, torch.device("cpu"), 10) == 10
    assert tried == [1, 2, 4, 8, 10]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_throughput_on_cuda_stops_where_the_memory_is_full():
    device = torch.device("cuda")
    model = timm.create_model(CAPE, **SMALL).eval().to(device)
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(free, 2**30) / total, device)
    try:
        found = throughput.throughput(model, 256, Runtime(device), 2**16, warm_up=2, runs=2)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert 1 <= found[0] < 2**16
    assert found[1] > 0
