"""Multilingual: what names of months, days and countries mean, from Babel's CLDR data.

The question goes from the other language into English and the quotation mark that closes a choice
is scored with it, so that a short name is not preferred for being the start of a longer one. The
form was picked by trying several on SmolLM2-135M: this one had 51 % of 240 questions right with
plain log-probabilities and 44 % with ones divided by length. Asked into the other language, the
model was mostly near chance (25 %), which tells configurations apart less well.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from infopt.errors import ConfigError, DependencyError
from infopt.evals.tasks.base import TASKS, ChoiceItem, ChoiceTask

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES = ("fr", "de", "es", "it", "pt", "nl", "pl", "sv", "tr", "id", "ru", "ja", "zh", "ko")
"""Languages asked for, by BCP 47 tag."""

COUNTRIES = (
    *("AT", "BE", "BR", "CH", "CN", "CZ", "DE", "DK", "EG", "ES", "FI", "FR", "GB", "GR", "HU"),
    *("IE", "IN", "IT", "JP", "KR", "MA", "MX", "NL", "NO", "NZ", "PL", "RU", "SE", "TR", "US"),
)
"""Countries asked for, by ISO 3166 code."""

_NUM_CHOICES = 4


@TASKS.register("multilingual")
class MultilingualTask(ChoiceTask):
    """Chooses the English meaning of a name among four names of the same kind."""

    name = "multilingual"

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run; names belong to a CLDR release."""
        from babel import __version__ as babel_version

        return f"{super().protocol(num_items, seed)}/babel={babel_version}"

    def items(self, num_items: int, seed: int) -> list[ChoiceItem]:
        """Return questions drawn over all languages and kinds.

        Raises:
            ConfigError: If more items are asked for than there are.
        """
        rng = random.Random(f"multilingual-{seed}")
        everything = [item for tag in LANGUAGES for item in _language_items(tag, rng)]
        if num_items > len(everything):
            raise ConfigError(
                f"num_items={num_items} is above the {len(everything)} multilingual items.",
                field="num_items",
                value=num_items,
            )
        return rng.sample(everything, num_items)


def _language_items(tag: str, rng: random.Random) -> list[ChoiceItem]:
    """Return all questions about one language."""
    english, local = _locale("en"), _locale(tag)
    language = local.get_display_name("en")
    items = []
    for kind in ("month", "day", "country"):
        meanings, names = _names(english, kind), _names(local, kind)
        for key, name in names.items():
            if name.casefold() == meanings[key].casefold():  # copying would do
                continue
            choices = tuple(f' "{choice}"' for choice in _choices(meanings, key, rng))
            prompt = f'The {language} word "{name}" means'
            items.append(ChoiceItem(f"{tag}/{kind}/{key}", prompt, choices))
    return items


def _choices(meanings: dict[str, str], key: str, rng: random.Random) -> list[str]:
    """Return the right meaning and three others."""
    others = sorted(set(meanings.values()) - {meanings[key]})
    return [meanings[key], *rng.sample(others, _NUM_CHOICES - 1)]


def _names(locale: Locale, kind: str) -> dict[str, str]:
    """Return the locale's names of a kind, by a key that all locales share."""
    if kind == "country":
        return {code: locale.territories[code] for code in COUNTRIES}
    table = locale.months if kind == "month" else locale.days
    return {str(number): str(name) for number, name in table["stand-alone"]["wide"].items()}


def _locale(tag: str) -> Locale:
    try:
        from babel import Locale
    except ImportError as error:
        raise DependencyError(
            "The multilingual task needs the names in Babel's CLDR data.",
            field="task",
            value="multilingual",
            remedy="pip install babel",
        ) from error
    return Locale.parse(tag)
