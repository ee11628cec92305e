"""Makes reports, plots and rooflines of the tables that `collect` wrote.

`dataset` reads the tables, `columns` knows units, `output` writes pictures and CSV files, `formats`
tables for terminals and papers. `report` compares algorithms, `report_training` shows training and
`layers` where the time goes. `best_layers` finds the fastest algorithm of each layer, of which
`best` makes maps, and `confirm` judges what they gained. `sides` reads what a person compares,
`compare` joins it, and `verdicts` tells differences from noise. `plot` puts one column over
another, with `speedup` for baselines and `plot_chart` for the picture. `roofline/` has a guide of
its own.
"""
