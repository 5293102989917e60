"""The paper's figures: one module of numbers each, and two that draw.

Numbers are frozen dataclasses of plain values, made by runs and kept in one small file a figure
(:mod:`~ocar_lab.paper.figures.store`); drawing needs the file alone.
"""
