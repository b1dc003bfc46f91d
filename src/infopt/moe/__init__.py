"""Mixtures of experts: their formulas, and what their routing does to a load."""
