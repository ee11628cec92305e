"""What looks at a point beside its times, one module each; `catalog/checks/` says what it tells."""
