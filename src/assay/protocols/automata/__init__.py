"""Threshold automata: quorum protocols as small counting machines, verified for every number of processes."""
