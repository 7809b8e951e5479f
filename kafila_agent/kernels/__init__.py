"""Below ``Linear``: products of a few rows with dense or packed weights, in C where a compiler is, else by torch."""
