"""The native path: C++ sources, the loader, and the PyTorch operators built on it."""
