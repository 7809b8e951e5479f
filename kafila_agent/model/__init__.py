"""Checkpoints: their manifest, the tensors of one block range, transformers' own layers by range."""
