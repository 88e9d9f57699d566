"""The corpus and the commands of the fairseq plug-in's tests."""

import importlib.util
from pathlib import Path

path = Path(__file__).parents[2] / "fairseq" / "conftest.py"
spec = importlib.util.spec_from_file_location("fairseq_conftest", path)
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
run, pairs = shared.run_fixture, shared.pairs
