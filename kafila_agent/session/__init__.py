"""One session as this member lives it: the way in, deciding, measuring, connecting, loading, serving."""
