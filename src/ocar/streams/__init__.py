"""Streams: what arrives, in what order, and the data it is made of."""
