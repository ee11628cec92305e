"""Makes reports, plots and rooflines of the tables that `collect` wrote.

`merged` reads and chooses rows, `dataset` knows what is valid and reliable, `verdicts` tells
differences from noise, `formats` and `output` write. The others each answer a command.
"""
