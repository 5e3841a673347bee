"""The native path: C++ source, the loader, and the PyTorch operators made of it."""
