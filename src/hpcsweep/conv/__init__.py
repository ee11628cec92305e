"""Convolution algorithms: what a call is, what it runs, and how that is proven.

Read `shape` (a call), `backend` (who can run it), `choice` and `swap` (what it runs),
`evidence` (what it did run). `reference*` is the back-end that works everywhere.
"""
