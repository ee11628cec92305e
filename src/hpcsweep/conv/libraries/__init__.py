"""Algorithms of the vendors' libraries: cuDNN and MIOpen, called through ctypes."""
