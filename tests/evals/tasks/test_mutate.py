import random

from infopt.evals.tasks.mutate import SWAPS, mutants

BODY = """    total = 0
    for x in values:
        if x > 3 and True:  # keep + this
            total += x
    return "a + b", total - 1
"""


def test_each_mutant_changes_one_token_and_keeps_the_rest():
    made = mutants(BODY, random.Random(0))
    assert BODY not in made
    assert len(set(made)) == len(made)
    for mutant in made:
        assert mutant.count("\n") == BODY.count("\n")
        changed = [(a, b) for a, b in zip(BODY.split(), mutant.split(), strict=True) if a != b]
        assert len(changed) == 1
        compile(f"def f(values):\n{mutant}", "mutant", "exec")


def test_strings_and_comments_stay():
    for mutant in mutants(BODY, random.Random(0)):
        assert "# keep + this" in mutant
        assert '"a + b"' in mutant


def test_expected_mutants():
    made = set(mutants("    return a + 1\n", random.Random(0)))
    assert made == {"    return a - 1\n", "    return a + 2\n"}
    assert mutants("    return a\n", random.Random(0)) == []


def test_order_depends_on_the_seed_alone():
    made = [mutants(BODY, random.Random(seed)) for seed in (0, 0, 1)]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert sorted(made[0]) == sorted(made[2])


def test_no_swap_is_the_identity():
    assert all(token not in swaps for token, swaps in SWAPS.items())
