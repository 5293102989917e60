"""Fast forms of the operations that the library is made of."""
