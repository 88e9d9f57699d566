"""What the paper's translation recipes need besides positions: ADMIN's residuals and RAdam.

Nothing of positions imports it; ``cape_plugins.fairseq.architectures`` puts the two together.
"""
