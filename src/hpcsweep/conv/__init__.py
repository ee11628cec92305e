"""Convolution algorithms: the shape of a call, the algorithm that it runs, and the proof of that.

Read `shape` (a call), `backend` (what can run it), `choice` and `swap` (which algorithm it runs),
`proof.profiled_passes` (which one it really ran). `reference` works on every device, `libraries`
calls cuDNN and MIOpen.
"""
