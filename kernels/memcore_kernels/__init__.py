"""The arithmetic of memcore: Numba kernels over arrays. They import nothing of memcore and read no clock.

Each has a slow, obvious twin in `tests/naive.py`. Nothing compiles at import.
"""
