"""A block range at work: KV cache, executor, loop. Knows tensors; never imports aioquic."""
