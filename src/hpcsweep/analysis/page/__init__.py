"""Writes one self-contained HTML page about a sweep, for `report --html`.

`frames` makes the data of the figures, `sections` chooses which there are and how they look,
`wording` says in words what was found and how it was measured, and `write` puts all of it into
`page.html`, with the scripts that draw (`figures.js`) and react (`page.js`).
"""
