"""The paper's figures, one module each: options, numbers, drawing.

Numbers are frozen dataclasses of plain values in one small file for each figure
(:mod:`~ocar_lab.paper.figures.store`); drawing needs only the file. ``FIGURE`` in each module is
the class of the figure (:mod:`~ocar_lab.paper.figures.base`).
"""
