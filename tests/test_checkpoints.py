"""Old checkpoints load for ever, and give the numbers that they gave when they were made.

They lie in tests/checkpoints, in each host's own layout. tests/checkpoints/make.py makes those of a
new variant, and never a second time those that are there.
"""

import json
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch

from checkpoint_support import FOLDER, HOSTS

INSTALLED = {"timm": "timm", "fairseq": "fairseq", "espnet": "espnet2"}


def missing(host: str, name: str) -> str:
    """What is not installed and the checkpoint needs."""
    if find_spec(INSTALLED[host]) is None:
        return host
    older = host == "espnet" and version("espnet") < "202611"
    return "ESPnet 202611" if older and not name.endswith("202511") else ""


CHECKPOINTS = [
    pytest.param(
        host, name, marks=pytest.mark.skipif(bool(what), reason=f"{what} is not installed")
    )
    for host in HOSTS
    for name in HOSTS[host].MADE
    for what in [missing(host, name)]
]
checkpoints = pytest.mark.parametrize(("host", "name"), CHECKPOINTS)


@checkpoints
def test_a_checkpoint_loads_by_its_host_and_gives_its_numbers(host, name):
    folder, ways = FOLDER / host / name, HOSTS[host]
    with torch.no_grad():
        found = ways.outputs(ways.load(folder).eval())
    expected = torch.tensor(json.loads((folder / "expected.json").read_text()))
    torch.testing.assert_close(found.flatten(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("host", "name"), [one for one in CHECKPOINTS if one.values[1] == "cape"])
def test_what_a_checkpoint_says_of_its_pos_is_still_compared(host, name):
    kept = HOSTS[host].weights(FOLDER / host / name)
    another = HOSTS[host].load(FOLDER / host / "alibi")
    with pytest.raises(ValueError, match=r"trained with.*\bcape\b.*\balibi\b"):
        another.load_state_dict(kept)
