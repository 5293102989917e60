"""The methods, one file each: its paper, its formula, its settings, and what it adds to a learner.

``contrastive``, ``rotated`` and ``virtual`` are no methods: they hold what some of them share.
"""
