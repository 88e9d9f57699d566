"""What follows from a user's data and from what the user chose: ``facts`` of a preparation.

A function for each kind of data takes the preparation's ``facts.yaml``, and the user's choices, of
which None leaves one open. cape-run calls it whenever it reads the file, so another length of the
training or another batch is no other preparation.
"""

import math
from collections.abc import Mapping
from typing import Any

Facts = dict[str, Any]

SIDES = 128, 64, 32, 16  # pixels that models are trained at, of eight patches
SCALES = 0.75, 1, 1.5, 2  # of the side, in testing
IMAGES = 100_000  # that a short training shows a model, each at least 10 and at most 100 times

SECONDS = 50  # of a batch of recordings
UPDATES = 1500  # of a short training on recordings; more, if needed to see each ten times
EPOCH = 100  # updates, after which ESPnet validates

WORDS = 1_500_000  # of a short training on sentences; more, if needed to see all three times

TOKENS = 2048  # of an update on text
SEEN = 2_000_000  # tokens that a training on text sees, each at most 20 times
PASSES = 20


def images(
    facts: Mapping[str, Any],
    side: int | None = None,
    patch: int | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    updates: int | None = None,
) -> Facts:
    """Of a folder of images.

    Args:
        facts: of :mod:`.images`.
        side: of the images in training, in pixels; default: by their size, or the model's own.
        patch: side of a patch in pixels; default: an eighth of the side, or the model's own.
        batch_size: images of an update; default: 64, or all if there are fewer.
        epochs: passes over the images; default: by how many there are.
        updates: of a training, in place of epochs.

    Raises:
        ValueError: there are fewer images than a batch has.
    """
    many, own = facts["train"], facts.get("backbone", {})
    batch_size = batch_size or min(64, many)
    if many < batch_size:
        raise ValueError(
            f"there are {many} images to train on, fewer than a batch of {batch_size}: "
            f"options.batch-size={many // 2} ({facts['found']})"
        )
    shorter = facts["shorter_side"]
    side = side or own.get("side") or next((one for one in SIDES if one <= shorter), SIDES[-1])
    patch = patch or own.get("patch") or max(1, side // 8)
    seen = IMAGES // 5 if own else IMAGES
    each = many // batch_size
    epochs = epochs or min(100, max(seen // 10_000, seen // many))
    updates = updates or max(1, round(epochs * each))
    shape = (192, 12, 3) if many >= 20_000 else (64, 4, 2)  # the former is timm's ViT-Ti
    found = {
        **facts,
        **dict(zip(("embed_dim", "depth", "num_heads"), shape, strict=True)),
        "found": f"{facts['found']}. Trained at {side} × {side} pixels in patches of {patch}, "
        f"{updates:,} updates, {passes(updates / each)}",
        "side": side,
        "patch": patch,
        "grid": side // patch,
        "updates": updates,
        "resolutions": [*dict.fromkeys(math.ceil(x * side / patch) * patch for x in SCALES)],
    }
    if own:  # a shift of coordinates by a quarter of the side, in the model's own unit
        across = (own["reference"] or side // patch) if own["counts"] else 2
        found |= {"twin": own["twin"], "shift_coords": across / 4}
        # training's patches a side, so that other sizes turn by training's angles
        found["ref_feat_shape"] = side // patch if own["lacks"] else None
    return found


def recordings(
    facts: Mapping[str, Any],
    batch_bins: int | None = None,
    epochs: float | None = None,
    max_epoch: int | None = None,
    num_iters_per_epoch: int | None = None,
) -> Facts:
    """Of a folder of recordings.

    Args:
        facts: of :mod:`.recordings`.
        batch_bins: samples of a batch; default: 50 seconds.
        epochs: passes over the recordings; default: those of 1,500 updates, at least ten.
        max_epoch: ESPnet's epochs, in place of the passes.
        num_iters_per_epoch: updates, after which ESPnet validates; default: 100.
    """
    bins = batch_bins or SECONDS * facts["rate"]
    each = max(1.0, facts["seconds"] * facts["rate"] / bins)  # updates of a pass
    updates = round(epochs * each) if epochs else max(UPDATES, round(10 * each))
    iters = num_iters_per_epoch or max(1, min(EPOCH, updates))
    rounds = max_epoch or max(1, round(updates / iters))
    updates = rounds * iters
    trained = f"trained for {updates:,} updates, {passes(updates / each)}"
    return {
        **facts,
        "found": f"{facts['found']}; {trained}{facts['left_out']}",
        "batch_bins": bins,
        "max_epoch": rounds,
        "num_iters_per_epoch": iters,
        "updates": updates,
    }


def sentences(
    facts: Mapping[str, Any],
    max_tokens: int = 1024,
    epochs: float | None = None,
    updates: int | None = None,
) -> Facts:
    """Of pairs of sentences.

    Args:
        facts: of :mod:`.sentences`.
        max_tokens: subwords of a batch, of the longer side.
        epochs: passes over the pairs; default: those of 1.5 million words, from 3 to 100.
        updates: of a training, in place of epochs.

    Raises:
        ValueError: a pair is longer than a batch.
    """
    if (longest := facts["longest_side"]) > max_tokens:
        raise ValueError(
            f"a pair has {longest:,} subwords on a side, a batch takes {max_tokens - 1:,}: "
            f"options.max-tokens={longest}, or leave it out: {facts['longest_pair']!r}"
        )
    each, inside = 1, 0  # batches, and pairs in the last one
    for length, many in sorted(facts["lengths"].items()):  # fairseq batches pairs of like lengths
        for _ in range(many):
            if (inside + 1) * length > max_tokens:
                each, inside = each + 1, 0
            inside += 1
    if not updates:
        seen = min(max(1.2 * WORDS / max_tokens, 3 * each), 100 * each)
        updates = max(1, round(epochs * each if epochs else seen))
    trained = f"Trained for {updates:,} updates, {passes(updates / each)}"
    return {
        **{name: one for name, one in facts.items() if name != "lengths"},
        "found": f"{facts['found']} {trained}{facts['left_out']}",
        "updates": updates,
        "warmup": updates // 5,
    }


def texts(
    facts: Mapping[str, Any],
    batch: int | None = None,
    epochs: float | None = None,
    updates: int | None = None,
) -> Facts:
    """Of text files.

    Args:
        facts: of :mod:`.texts`.
        batch: sequences of an update; default: those of 2,048 tokens.
        epochs: passes over the tokens; default: those of two million tokens, at most 20.
        updates: of a training, in place of epochs.

    Raises:
        ValueError: there is less than a batch.
    """
    length = facts["length"]
    batch = batch or TOKENS // length
    sequences = facts["tokens"] // length
    if sequences < batch:
        raise ValueError(
            f"there are {facts['tokens']:,} tokens to train on, {sequences} sequences of {length}: "
            f"fewer than a batch of {batch}. Bring more text, or give options.batch="
            f"{sequences or 1}"
        )
    each = sequences / batch
    seen = min(SEEN / (batch * length), PASSES * each)
    updates = updates or max(1, round(epochs * each if epochs else seen))
    scored = f"the last {facts['scored']} of {', '.join(f'{x:,}' for x in facts['lengths'])}"
    return {
        **facts,
        "found": f"{facts['found']}. Trained on {length} tokens for {updates:,} updates of {batch} "
        f"sequences, {passes(updates / each)}; {scored} are scored",
        "batch": batch,
        "updates": updates,
        "warmup": updates // 10,
    }


def passes(number: float) -> str:
    """So many passes over the data, in words: ``about 8.3 epochs``, ``about 2,300 epochs``."""
    two = float(f"{number:.2g}")
    return f"about {two:{',.0f' if two >= 10 else 'g'}} epochs"
