"""cape-espnet-eval against texts worked out with ESPnet's model, and edits counted by hand."""

import logging
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")
pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")
yaml = pytest.importorskip("yaml")

from espnet2.bin.asr_inference import Speech2Text  # noqa: E402
from espnet2.tasks.asr import ASRTask  # noqa: E402

from cape_studies.evaluate.espnet import evaluate, testset  # noqa: E402
from cape_studies.evaluate.espnet.models import Model  # noqa: E402
from lab_support import check_items, rows  # noqa: E402

RATE = 8000
TOKENS = ["<blank>", "<unk>", "<noise>", "<space>", *"abcd", "<sos/eos>"]
TEXTS = ["ab <noise> cd", "a  b c d", "dcba", "ab dd", "c"]
SECONDS = [0.6, 1.0, 1.5, 2.0, 2.5]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Noise of five durations."""
    folder, random = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "shape": []}
    for i, (text, seconds) in enumerate(zip(TEXTS, SECONDS, strict=True)):
        samples, path = random.uniform(-1, 1, round(seconds * RATE)), folder / f"u{i}.wav"
        samples *= np.sin(np.arange(len(samples)) / RATE * 6)
        soundfile.write(path, samples, RATE)
        for name, value in zip(lines, (path, text, len(samples)), strict=True):
            lines[name].append(f"u{i} {value}\n")
    for name, content in lines.items():
        (folder / name).write_text("".join(content))
    return folder


@pytest.fixture(scope="module")
def file(data, tmp_path_factory) -> Path:
    """A checkpoint of an untrained model with letters as tokens and a CTC in the middle too."""
    work = tmp_path_factory.mktemp("model")
    sizes = dict(output_size=16, attention_heads=2, linear_units=32, num_blocks=2)
    config = {
        **dict(frontend_conf=dict(fs="8k", n_fft=256, hop_length=80, n_mels=20)),
        **dict(encoder="transformer", encoder_conf=dict(**sizes, interctc_layer_idx=[1])),
        **dict(model_conf=dict(ctc_weight=1.0, interctc_weight=0.3)),
        **dict(normalize="utterance_mvn", token_type="char", token_list=TOKENS),
        **dict(non_linguistic_symbols=["<noise>"], use_matplotlib=False, use_tensorboard=False),
    }
    (work / "train.yaml").write_text(yaml.safe_dump(config))
    words = ["--config", work / "train.yaml", "--ngpu", 0, "--dry_run", "true"]
    words += ["--output_dir", work]
    for part in ("train", "valid"):
        words += [f"--{part}_shape_file", data / "shape"]
        for name, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            words += [f"--{part}_data_path_and_name_and_type", f"{data / name},{kind}"]
    handlers = logging.root.handlers[:]
    ASRTask.main(cmd=[*map(str, words)])
    logging.root.handlers[:] = handlers
    torch.manual_seed(0)
    model, _ = ASRTask.build_model_from_file(work / "config.yaml", None)
    torch.nn.init.normal_(model.ctc.ctc_lo.weight, std=3.0)
    torch.save(model.state_dict(), work / "valid.acc.best.pth")
    return work / "valid.acc.best.pth"


def heard(file: Path, data: Path, amp: bool) -> list[str]:
    """The likeliest letter of each frame, without repeats and blanks, by ESPnet's own model."""
    model, _ = ASRTask.build_model_from_file(file.parent / "config.yaml", file)
    model.eval()
    found = []
    for i in range(len(TEXTS)):
        speech = torch.from_numpy(soundfile.read(data / f"u{i}.wav", dtype="float32")[0])[None]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
            (out, _), _ = model.encode(speech, torch.tensor([speech.shape[1]]))
            best = model.ctc.ctc_lo(out)[0].argmax(-1).tolist()
        kept = [one for at, one in enumerate(best) if at == 0 or best[at - 1] != one]
        letters = [TOKENS[one] for one in kept if one not in (0, len(TOKENS) - 1)]
        text = "".join({"<space>": " ", "<noise>": ""}.get(one, one) for one in letters)
        found.append(" ".join(text.split()))
    return found


def edits(reference: str | list[str], hypothesis: str | list[str]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(hypothesis) + 1))
    for i, one in enumerate(reference, 1):
        above, row = row, [i]
        for j, other in enumerate(hypothesis, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (one != other)))
    return row[-1]


@pytest.mark.parametrize("amp", [False, True])
def test_errors_are_the_edits_of_the_likeliest_letters(data, file, run, tmp_path, amp):
    found = run(
        *("--model", f"mine={file}", file.parent, "--data", f"noise={data}", f"again={data}"),
        *("--bins", 2.0, 1.0, "--items", tmp_path / "items.csv", *["--amp"] * amp),
    )
    check_items(found, tmp_path / "items.csv")
    texts = heard(file, data, amp)
    assert len({*texts}) == len(texts)
    # without symbols of noise, and with single spaces
    references = ["ab cd", "a b c d", "dcba", "ab dd", "c"]
    scores, items = [], []
    bins = {"all": range(5), "<1": [0], "1-2": [1, 2], ">=2": [3, 4]}
    models, sets = ("mine", file.parent.name), ("noise", "again")
    for *named, label, metric in product(models, sets, bins, ("wer", "cer")):
        about, sums, inside = [*named, label, metric], [0, 0], bins[label]
        for i in inside:
            pair = references[i], texts[i]
            split = [one.split() for one in pair] if metric == "wer" else pair
            item = edits(*split), len(split[0])
            sums = [a + b for a, b in zip(sums, item, strict=True)]
            items.append([*about, f"u{i}", *map(str, item)])
        value = pytest.approx(100 * sums[0] / sums[1])
        scores.append([*about, str(file), "percent", str(len(inside)), str(sums[1]), value])
    columns = ["model", "test_set", "bin", "metric"]
    assert [
        [*(row[one] for one in (*columns, "checkpoint", "how", "items", "weight")),
         float(row["value"])] for row in found
    ] == scores  # fmt: skip
    columns += ["item", "value", "weight"]
    assert [[row[one] for one in columns] for row in rows(tmp_path / "items.csv")] == items


@pytest.mark.parametrize("amp", [False, True])
def test_mixed_precision_is_used_where_it_is_asked_for(data, file, monkeypatch, amp):
    seen = []

    def tokens(model, speech):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return [4]

    monkeypatch.setattr(Model, "tokens", tokens)
    given = evaluate.EspnetOptions(model=["m"], data=["d"], amp=amp)
    utterances, _ = testset.read(data)
    model = Model("m", file, {}, torch.device("cpu"))
    assert evaluate.decode(model, utterances, given) == ["a"] * 5
    assert seen == [(amp, torch.bfloat16)] * 5


def test_a_search_is_espnets_with_its_options(data, file, run, tmp_path):
    search = {"beam_size": 3, "ctc_weight": 1.0, "penalty": 0.5, "maxlenratio": -6}
    theirs = Speech2Text(file.parent / "config.yaml", file, device="cpu", **search)
    words = [f"{name}={value}" for name, value in search.items()]
    run(
        *("--model", file, "--data", data, "--bins", "--items", tmp_path / "items.csv"),
        *("--search", *words),
    )
    items, references = rows(tmp_path / "items.csv"), ["ab cd", "a b c d", "dcba", "ab dd", "c"]
    found = [int(row["value"]) for row in items if row["metric"] == "cer"]
    expected = []
    for i, reference in enumerate(references):
        best, _ = theirs(soundfile.read(data / f"u{i}.wav", dtype="float32")[0])  # and the middle's
        text = "".join(one for one in best[0][1] if one != "<noise>").replace("<space>", " ")
        expected.append(edits(reference, " ".join(text.split())))
    assert found == expected
    assert expected != [
        edits(*pair) for pair in zip(references, heard(file, data, False), strict=True)
    ]


def test_the_parts_of_a_model_are_espnets(data, file):
    model = Model("mine", file, {}, torch.device("cpu"))
    assert (model.name, model.file, model.searches, model.asr.training) == (
        *("mine", file, False, False),
    )
    assert model.rate == RATE
    speech = model.heard("u0", np.full(400, 0.25, np.float32))
    assert (speech.shape, speech.dtype, speech.unique().tolist()) == (
        *((1, 400), torch.float32, [0.25]),
    )
    assert model.tokens(torch.zeros(1, model.shortest - 1)) is None
    assert model.reference(" a <noise>  bb ") == "a bb"
    assert model.hypothesis([4, 2, 3, 3, 5, 5]) == "a bb"


def test_what_training_left_out_or_wrapped_is_made_up_for(data, file, tmp_path):
    """Features that were computed before training; weights as DeepSpeed saves them."""
    config = yaml.safe_load((file.parent / "config.yaml").read_text())
    config |= {"use_preprocessor": False, "speech_volume_normalize": 0.5}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    torch.save({"module": torch.load(file, weights_only=True)}, tmp_path / "deep.pth")
    model = Model("deep", tmp_path / "deep.pth", {}, torch.device("cpu"))
    assert model.hypothesis([4, 2, 5]) == "ab"
    # ESPnet's preprocessing scales audio by its peak in inference too
    assert model.heard("u0", np.array([0.1, -0.2], np.float32)).tolist() == [[0.25, -0.5]]
    plain = Model("plain", file, {}, torch.device("cpu"))
    for one, other in zip(model.asr.parameters(), plain.asr.parameters(), strict=True):
        assert torch.equal(one, other)
    config |= {"non_linguistic_symbols": None}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    without = Model("without", tmp_path / "deep.pth", {}, torch.device("cpu"))
    assert without.reference(" a   bb ") == "a bb"


def test_the_defaults_are_those_of_the_page():
    options = evaluate.EspnetOptions(model=["m"], data=["d"])
    assert (options.bins, options.search) == ([10, 15, 20], {})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--model --data d", "--model: list should have at least 1 item"),
        ("--model m --data", "--data: list should have at least 1 item"),
        ("--model m --data a=x b/a", "--data has a twice: give names with --data NAME=FOLDER"),
        ("--model a/m b/m --data DATA", "--model has m twice: give names with --model NAME=PATH"),
        ("--model =m --data DATA", "--model takes PATH or NAME=PATH, got '=m'"),
        ("--model m --data =d", "--data takes PATH or NAME=PATH, got '=d'"),
        ("--model m --data d --bins -1", "--bins: input should be greater than 0"),
    ],
)
def test_wrong_words_are_told(data, refused, words, told):
    assert told in refused(*words.replace("DATA", str(data)).split())


@pytest.mark.release
def test_two_in_one_process_find_what_each_finds_alone(data, file, run, together):
    """A search, and mixed precision, are of their own command."""
    given = ["--model", file, "--data", data, "--bins", 1.2]
    search = [*given, "--search", "ctc_weight=1.0", "beam_size=2", "--amp"]
    alone = run(*given), run(*search)
    assert alone[0] != alone[1]
    assert together(search, given) == [alone[1], alone[0]]
