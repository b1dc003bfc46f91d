"""Batches that stay together: who is admitted when, and what is computed for nothing."""

from infopt.engine.sequence import SequenceStatus


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *range(2, length + 1)]


def test_static_admits_when_the_whole_batch_has_finished(simulation) -> None:
    sim = simulation(scheduling="static", max_num_seqs=3)
    for i, length in enumerate([2, 6, 4, 1, 1]):
        sim.add(prompt(3, i + 1), max_tokens=length)
    sim.run()
    sizes = [len(plan.scheduled) for plan in sim.plans]
    assert sizes == [3, 3, 2, 2, 1, 1, 2]  # finished rows leave the flat batch
    assert all(plan.num_padding_tokens == 0 for plan in sim.plans)


def test_a_static_batch_is_closed_to_later_arrivals(simulation) -> None:
    sim = simulation(scheduling="static", max_num_seqs=4)
    sim.add(prompt(3), max_tokens=5)
    sim.step()
    late = sim.add(prompt(3, 2), max_tokens=1)[0]
    for _ in range(4):
        assert late.status is SequenceStatus.WAITING
        sim.step()
    assert not sim.sequences[0].cache.num_pages
    sim.run()


def test_padded_batches_count_what_a_classic_batch_computes(simulation) -> None:
    """Prompts as long as the longest; finished rows go on until the last one ends."""
    sim = simulation(scheduling="static_padded", max_num_seqs=3, max_num_batched_tokens=64)
    prompts, outputs = [3, 5, 8], [2, 6, 4]
    for i in range(3):
        sim.add(prompt(prompts[i], i + 1), max_tokens=outputs[i])
    sim.run()
    computed = sum(plan.num_tokens + plan.num_padding_tokens for plan in sim.plans)
    assert computed == 3 * max(prompts) + 3 * (max(outputs) - 1)
    assert [plan.num_padding_tokens for plan in sim.plans] == [8, 0, 1, 1, 2, 2]
    sim.check_outputs()
