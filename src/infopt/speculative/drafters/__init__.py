"""Drafters: one file per method."""
