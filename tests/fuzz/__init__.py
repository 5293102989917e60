"""Hostile files: valid ones that were spoiled, fed to every reader of the package.

``make fuzz`` runs many of them, the tests a few. The input number ``i`` of a target is decided by
the seed and ``i`` alone, so that any failure can be made again.
"""
