"""What a run teaches: the paper's Sections 5.3 to 5.6 and Appendix A over the records of ``mdl evaluate``."""
