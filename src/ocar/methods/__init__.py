"""The methods, one file each: paper, formula, settings, and the parts that it adds to a learner.

``contrastive``, ``copies``, ``rotated`` and ``stretches`` hold code that several methods share.
"""
