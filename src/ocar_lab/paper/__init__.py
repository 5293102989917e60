"""The paper's tables and figures, with our numbers from stored runs.

Numbers first: each module computes plain data, which others put into words or draw.
"""
