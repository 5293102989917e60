"""Learners inside other libraries: scikit-learn, river, Avalanche.

Import a module by name; each needs the library that it is named after.
"""
