"""ESPnet's own encoders with our positions: Conformer, E-Branchformer, Branchformer."""

from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder

from cape_plugins.espnet.encoder import InSeconds


class CapeConformerEncoder(InSeconds, ConformerEncoder):
    """``encoder: cape_conformer``, ESPnet's Conformer."""


class CapeEBranchformerEncoder(InSeconds, EBranchformerEncoder):
    """``encoder: cape_e_branchformer``, ESPnet's E-Branchformer."""


class CapeBranchformerEncoder(InSeconds, BranchformerEncoder):
    """``encoder: cape_branchformer``, ESPnet's Branchformer."""
