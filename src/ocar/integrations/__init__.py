"""Ways into other libraries: scikit-learn, river, Avalanche.

Each module needs the library that it is named after and is imported by name, so that nobody
else pays for it.
"""
