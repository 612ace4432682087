"""From data sets to retrievals that the gate decides on."""
