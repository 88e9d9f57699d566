"""Evaluation of what the hosts trained: timm, fairseq, ESPnet, and what the three share."""
