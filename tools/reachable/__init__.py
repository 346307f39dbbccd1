"""Finds code of endpick that nothing uses: by its names, and by what real runs of `endpick serve` enter."""
