"""The example of docs/energy.md runs."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "energy.md"


def test_the_example_gives_a_traffic() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    # 0.40 an hour against 500 x 0.10 + 100 x 0.40 per million
    assert abs(names["point"].requests_per_s - 0.40 / 3600 / 9e-5) < 1e-9


def test_the_constants_on_the_page_are_those_of_the_code() -> None:
    from infopt.energy import EnergyConstants

    text = PAGE.read_text("utf-8")
    for name in EnergyConstants.__slots__:
        constant = getattr(EnergyConstants(), name)
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        numbers = [
            float(n) for n in re.findall(r"\d+(?:\.\d+)?", row.split("|")[2] + row.split("|")[3])
        ]
        assert numbers == [constant.value, constant.low, constant.high]
