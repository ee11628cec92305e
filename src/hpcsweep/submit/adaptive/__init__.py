"""`submit --until-error`: measures in rounds, as much as a prediction of the rest needs."""
