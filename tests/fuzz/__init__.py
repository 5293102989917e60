"""Fuzzing: corrupted files for every reader of the package.

``make fuzz`` runs many of them, the tests a few. Input ``i`` of a target depends on the seed and
``i`` only, so any failure can be reproduced.
"""
