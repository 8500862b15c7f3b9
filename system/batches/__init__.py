"""Choose and change the clips of batches.

Batches: choose their clips and captions, change them at random, and make their tensors.
"""
