"""Writes one self-contained HTML page about a sweep, for `report --html`.

`frames` makes the data of the figures, `figures` draws them with Vega-Altair, `sections` chooses
which there are, and `write` puts all with tables and library into `page.html`.
"""
