"""The tiny family: small language models trained from text that every Python installation holds.

>>> from infopt.training import recipe_of, train_tiny
>>> train_tiny(recipe_of("tiny-draft"), "build/tiny-draft", seed=0)

Their weights were never quantized, so an order between quantization schemes means something on
them; ``tiny-draft`` speaks ``tiny-dense``'s tokens, and ``tiny-moe`` reads as many parameters per
token as ``tiny-dense``. ``infopt train-tiny`` runs the same from the command line.
"""

from infopt.training.recipes import LEARNED_SHARE, RECIPES, Recipe, recipe_of
from infopt.training.tiny import TrainedModel, train_tiny

__all__ = ["LEARNED_SHARE", "RECIPES", "Recipe", "TrainedModel", "recipe_of", "train_tiny"]
