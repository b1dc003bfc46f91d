"""Selection: which measured configuration to serve, and why.

>>> df = load_results("results")
>>> recommendation = choose(df, slo, objective="goodput")
>>> write_recommendation(recommendation, "results/recommendation.yaml")
"""

from infopt.select.ablation import Effect, ablation
from infopt.select.compare import ComparisonReport, compare_results
from infopt.select.explain import Explanation, add_explanations, explain_record, explain_row
from infopt.select.front import Front, front_of
from infopt.select.interactions import Interaction, interactions
from infopt.select.objectives import OBJECTIVES, Objective, add_derived_columns, get_objective
from infopt.select.pairing import NothingComparableError, OtherMachineError
from infopt.select.pareto import Hypervolume, hypervolume, pareto_front
from infopt.select.quality import FLOORS, QualityFloor, check_quality, get_floor, inherit_quality
from infopt.select.recommend import choose
from infopt.select.recommendation import BaselineGain, Recommendation
from infopt.select.slo_filter import check_slo, filter_runs
from infopt.select.violation import Violation
from infopt.select.yaml_file import read_recommendation, write_recommendation

__all__ = [
    "FLOORS",
    "OBJECTIVES",
    "BaselineGain",
    "ComparisonReport",
    "Effect",
    "Explanation",
    "Front",
    "Hypervolume",
    "Interaction",
    "NothingComparableError",
    "Objective",
    "OtherMachineError",
    "QualityFloor",
    "Recommendation",
    "Violation",
    "ablation",
    "add_derived_columns",
    "add_explanations",
    "check_quality",
    "check_slo",
    "choose",
    "compare_results",
    "explain_record",
    "explain_row",
    "filter_runs",
    "front_of",
    "get_floor",
    "get_objective",
    "hypervolume",
    "inherit_quality",
    "interactions",
    "pareto_front",
    "read_recommendation",
    "write_recommendation",
]
