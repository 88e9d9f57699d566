"""Names that the tests of timm's models share, and what the blocks get."""

from torch import Tensor, nn

HOSTS = ("vit", "naflexvit")
# CAPE that moves nothing
STILL = dict(max_global_shift=0.0, max_local_shift=0.0, max_global_scale=1.0)
# timm's rotary ViTs under CAPE, by the unit of their coordinates
EVAS = {
    "cat": "vit_small_patch16_rope_cape_224",  # indices
    "cat_reference": "vit_pe_core_tiny_patch16_cape_384",  # from 1, re-scaled; a table beside them
    "dinov3": "vit_small_patch16_dinov3_cape",  # from -1 to 1
    "mixed": "vit_small_patch16_rope_mixed_cape_224",  # indices
}


def into_blocks(model: nn.Module, images: Tensor, **masks: object) -> tuple:
    """The first block's arguments: tokens, and of a variant in attention what the core gives."""
    seen: list[tuple] = []
    hook = model.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given))
    model.forward_features(images, **masks)
    hook.remove()
    return seen[0]
