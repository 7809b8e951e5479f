"""Below ``Linear``: products with dense or packed weights, in C where a compiler is, else by torch."""
