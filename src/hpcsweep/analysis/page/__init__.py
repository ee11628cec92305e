"""Writes one self-contained HTML page about a sweep, for `report --html`.

Read in this order:

* `frames` makes the data of the figures: points, layers, the best algorithm, pieces of a roofline.
* `figures` draws them with Vega-Altair; each figure is a specification that the browser draws.
* `tables` makes the tables: all points, failures, flags, the environment of each GPU.
* `write` puts everything, with the library that draws, into the one file (`page.html`, `page.css`,
  `page.js`).
"""
