"""Texts as minibatches of tokens: aligned sentences for translation, plain text and NVIDIA's shards for BERT.

Words become subwords of a vocabulary that is trained on the training split once, and kept in the cache of samples.
"""
