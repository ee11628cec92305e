"""Writes one self-contained HTML page about a sweep, for `report --html`.

`figures` chooses which figures there are, how they look, and what data they draw,
`wording` says in words what was found and how it was measured, and `write` puts all of it into
`page.html`, with the scripts that draw (`figures.js`) and react (`page.js`).
"""
