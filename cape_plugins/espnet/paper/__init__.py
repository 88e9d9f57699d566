"""What the paper's speech recipes need besides positions; nothing of positions imports it.

The front end ``cape_fbank``, the masks ``cape_specaug``, ``iterator_type: task`` (batches without
padding), ``model: cape_asr``, and the Transformer of section 4.2 with layer drop.
"""
