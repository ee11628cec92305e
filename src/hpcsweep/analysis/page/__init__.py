"""Writes one self-contained HTML page about a sweep, for `report --html`.

`frames` makes the data of the figures, `sections` chooses which there are and how they look, and
`write` puts them into `page.html`, below a headline in words, with the scripts that draw
(`figures.js`) and react (`page.js`).
"""
