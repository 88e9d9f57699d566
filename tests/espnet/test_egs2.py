"""The egs2 template: what run.sh hands to asr.sh."""

import shlex
import shutil
import sys

import pytest
from espnet2.tasks.asr import ASRTask

from cape_support import ROOT, run

TEMPLATE = ROOT / "integrations" / "espnet" / "egs2_template"


@pytest.fixture
def run_cape(tmp_path):
    """corpus, arguments, variables → run_cape.sh's status and output, the recipe's folder.

    It is as the template's README has it, with a recorder of asr.sh's arguments.
    """

    def run_cape(corpus: str, /, *arguments: str, **variables: str):
        recipe = tmp_path / "egs2" / corpus / "asr1"
        (recipe / "conf" / "cape").mkdir(parents=True, exist_ok=True)
        configs = ROOT / "configs" / "espnet"
        for path in (*(configs / corpus).glob("*.yaml"), *configs.glob("*.yaml")):
            shutil.copy(path, recipe / "conf" / "cape")
        shutil.copy(TEMPLATE / "run.sh", recipe / "run_cape.sh")
        (recipe / "asr.sh").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" > arguments\n')
        (recipe / "asr.sh").chmod(0o755)
        variables = {"python": sys.executable, **variables}
        return *run("./run_cape.sh", *arguments, cwd=recipe, **variables), recipe

    return run_cape


@pytest.mark.parametrize(
    ("corpus", "variant", "ngpu", "batch_bins", "accum_grad", "positions"),
    [
        ("wsj", "cape", 1, 3_840_000, 16, {"pos": "cape", "max_global_scale": 1.1}),
        ("tedlium3", "cape_padding_free", 4, 15_360_000, 4, {"max_global_scale": 1.0}),
        ("tedlium3", "seq2seq_relpos", 16, 12_800_000, 1, {"pos": "relpos"}),
    ],
)
def test_run_sh_gives_asr_sh_the_variant_and_the_papers_batch_on_any_number_of_gpus(
    corpus, variant, ngpu, batch_bins, accum_grad, positions, run_cape
):
    stage = ("--stage", "10")
    status, said, recipe = run_cape(corpus, variant, *stage, ngpu=str(ngpu), asr_args="--seed 3")
    assert status == 0, said
    given = (recipe / "arguments").read_text().splitlines()
    assert given[-2:] == ["--stage", "10"]
    given = dict(zip(given[::2], given[1::2], strict=True))
    assert given["--ngpu"] == str(ngpu)
    assert given["--feats_normalize"] == "utterance_mvn"
    assert (recipe / given["--inference_config"]).is_file()
    # what asr.sh makes of it for asr_train
    config = ["--config", str(recipe / given["--asr_config"]), "--frontend_conf", "fs=16k"]
    config += ["--output_dir", "unused", "--token_list", "unused"]
    parsed = ASRTask.get_parser().parse_args([*config, *shlex.split(given["--asr_args"])])
    assert (parsed.batch_bins, parsed.accum_grad, parsed.seed) == (batch_bins, accum_grad, 3)
    assert positions.items() <= parsed.encoder_conf.items()
    assert (parsed.iterator_type == "task") == variant.endswith("padding_free")
    assert (parsed.decoder is not None) == variant.startswith("seq2seq")
    assert given["--asr_tag"] == f"train_asr_{variant}_raw_en_char_seed3"
    criterion = ".".join(parsed.best_model_criterion[0][:2])
    assert given["--inference_asr_model"] == f"{criterion}.best.pth"


@pytest.mark.parametrize(
    ("variant", "variables", "named"),
    [
        ("cappe", {}, "cappe"),
        ("seq2seq_relpos", {}, "relpos"),
        ("cape", {"ngpu": "3"}, "ngpu"),
        ("cape", {"corpus": "aishell"}, "aishell"),
    ],
)
def test_run_sh_says_what_it_cannot_do(variant, variables, named, run_cape):
    status, said, recipe = run_cape("wsj", variant, **variables)
    assert status == 2
    assert named in said
    assert not (recipe / "arguments").exists()
