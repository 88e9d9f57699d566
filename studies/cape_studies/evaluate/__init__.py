"""Evaluation of checkpoints of timm, fairseq and ESPnet, and what the three share."""
