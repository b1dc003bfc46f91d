"""Axes and tables say where an energy is not the difference of two counters."""

import pandas as pd
import pytest

from infopt.plotting.data import read_values
from infopt.plotting.tables import results_table


@pytest.mark.parametrize(
    ("sources", "label"),
    [
        (["rapl", "rapl"], "Energy (J/token)"),
        (["rapl", None], "Energy (J/token)"),
        (["rapl", "modelled"], "Energy, derived (J/token)"),
        (["power-integral", "nvml"], "Energy, power sampled (J/token)"),
    ],
)
def test_one_value_of_another_origin_labels_the_axis_and_the_column(
    sources: list[str | None], label: str
) -> None:
    table = pd.DataFrame(
        {"slug": ["a", "b"], "energy.j_per_token": [1.0, 2.0], "energy.source": sources}
    )
    assert read_values(table, "energy.j_per_token").metric.axis_label == label
    assert list(results_table(table, ["energy.j_per_token"], label="slug").columns) == [label]


def test_other_columns_keep_their_label() -> None:
    table = pd.DataFrame({"roofline.mbu": [0.5], "energy.source": ["modelled"]})
    assert "derived" not in read_values(table, "roofline.mbu").metric.axis_label
