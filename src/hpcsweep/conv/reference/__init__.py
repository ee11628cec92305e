"""Every algorithm written in PyTorch, so that any sweep runs on any device."""
