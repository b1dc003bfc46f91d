"""Function calling: reading calls out of a model's text, and forcing them where asked."""
