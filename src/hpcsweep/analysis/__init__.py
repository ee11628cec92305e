"""Makes reports, plots and rooflines of the tables that `collect` wrote.

`dataset` reads the tables, `columns` knows units, `output` writes pictures and CSV files. `report`
compares algorithms and `report_training` shows training. `plot` puts one column over another, with
`speedup` for baselines and `plot_chart` for the picture. `roofline/` has a guide of its own.
"""
